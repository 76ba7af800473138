"""Print an interpreter for each Python version that pyproject.toml claims, for `make test-pythons`.

They are searched on the path, then among those of pyenv. A version without one is named on stderr.
"""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def claimed_versions() -> list[str]:
    """The versions of the classifiers, such as 3.11."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in project["classifiers"])
    return [match[1] for match in texts if match is not None]


def find_interpreter(version: str) -> str | None:
    """The path of an interpreter of this version."""
    if (path := shutil.which(f"python{version}")) is not None and "shims" not in Path(path).parts:
        return path  # a shim of pyenv is found for versions that it does not run, too
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    paths = map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    return max(paths, key=lambda path: [int(number) for number in re.findall(r"\d+", path)], default=None)


def main() -> None:
    for version in claimed_versions():
        if (path := find_interpreter(version)) is None:
            print(f"there is no Python {version} on this machine", file=sys.stderr)
        else:
            print(path)


if __name__ == "__main__":
    main()
