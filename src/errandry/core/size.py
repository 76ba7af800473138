"""Amounts of memory as people write them: `536870912`, `"512 MB"`, `"1.5 GiB"`."""

import re
from fractions import Fraction

from errandry.errors import InvalidValue


def size(value: str | int, name: str = "size") -> int:
    """`value` in bytes. `name` names the value in an error. 1 kB is 1,000 bytes and 1 KiB 1,024."""
    if isinstance(value, str) and (match := _TEXT.fullmatch(value.strip().lower())):
        number, unit = match.groups()
        value = int(Fraction(number) * _UNITS[unit or "b"])
    if type(value) is not int or not 0 <= value <= SIZE_MAX:
        raise InvalidValue(name, value, 'not a size; write bytes (536870912) or a text: "512 MB", "1.5 GiB"')
    return value


def format_size(count: int) -> str:
    """The usual spelling, to three digits: 536870912 is `537 MB`."""
    unit = next((unit for unit in ("TB", "GB", "MB", "kB") if count >= _UNITS[unit.lower()]), "B")
    return f"{count / _UNITS[unit.lower()]:.3g} {unit}"


SIZE_MAX = 2**60
_UNITS = {
    "b": 1,
    **{f"{letter}b": 1_000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1_024**power for power, letter in enumerate("kmgt", 1)},
}
_TEXT = re.compile(rf"([0-9]{{1,15}}(?:\.[0-9]{{1,9}})?) ?({'|'.join(_UNITS)})?")
