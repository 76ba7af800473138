"""Make texts of users safe for terminals and logs: control characters escaped, the size limited."""

LINE_MAX = 4_000
"""Maximum number of characters of a log line, without its traceback."""
TRACE_MAX = 16_000
"""Maximum number of characters of a traceback in a log."""


def clean(text: str) -> str:
    """Escape every character that is invisible or would move the cursor, except line breaks and tabs."""
    return text if text.isprintable() else "".join(_escape_char(char) for char in text)


def one_line(text: str) -> str:
    """Like `clean`, and escape line breaks and tabs too."""
    return clean(text).replace("\n", "\\n").replace("\t", "\\t")


def shorten(text: str, limit: int) -> str:
    """The text, or its beginning and its end if it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}… {len(text) - 2 * half:,} characters left out …{text[-half:]}"


def log_line(text: str, limit: int = LINE_MAX) -> str:
    """The text as one line of a log."""
    return one_line(shorten(text, limit))


def log_trace(text: str) -> str:
    """A traceback for a log. It keeps its line breaks."""
    return clean(shorten(text, TRACE_MAX))


def _escape_char(char: str) -> str:
    if char.isprintable() or char in "\n\t":
        return char
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
