"""Escapes and truncates text of other processes for log lines (log injection)."""

MAX_NAME_CHARS = 128
MAX_REQUEST_ID_CHARS = 512
MAX_LINE_CHARS = 2000
MAX_MODEL_CHARS = 1024


def one_line(text: str, max_chars: int = MAX_LINE_CHARS) -> str:
    """`text` with control characters escaped, so that it cannot forge a line, and truncated."""
    cut = escape(text[:max_chars])[:max_chars]
    return f"{cut}…" if len(text) > max_chars else cut


def escape(text: str) -> str:
    """`text` in one line without control characters, so that no client can forge a log line."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else ascii(c)[1:-1] for c in text])
