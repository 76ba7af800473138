"""Stored values as text a person reads; whatever is in them, the terminal only ever shows it."""


def clean(text: str) -> str:
    """`text` with every character that would not be seen, or would move the cursor, in its escaped form."""
    return text if text.isprintable() else "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char.isprintable() or char in "\n\t":
        return char
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
