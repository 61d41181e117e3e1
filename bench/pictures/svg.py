"""Helpers to write SVG text: elements, escaping, and the two colour schemes of README pictures."""

from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

SANS = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Scheme:
    """Colours of one picture, as CSS colours."""

    name: str
    background: str
    text: str
    muted: str
    ours: str
    theirs: str


SCHEMES = (
    Scheme("light", "#ffffff", "#1f2328", "#59636e", "#e8590c", "#9aa4af"),
    Scheme("dark", "#0d1117", "#f0f6fc", "#9198a1", "#ff922b", "#656c76"),
)


def element(name: str, content: str = "", **attributes: object) -> str:
    """One element. An attribute's `_` is written as `-`; a trailing `_` is dropped."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_plain(value))}"
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, content: str, **attributes: object) -> str:
    """A text whose baseline starts at (x, y)."""
    return element("text", escape(content), x=x, y=y, **attributes)


def document(width: int, height: int, title: str, *parts: str, **attributes: object) -> str:
    """A whole file. `title` is what a screen reader says."""
    return (
        element(
            "svg",
            "\n".join(("", element("title", escape(title)), *parts, "")),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {height}",
            width=width,
            height=height,
            role="img",
            **attributes,
        )
        + "\n"
    )


def _plain(value: object) -> str:
    """A number with at most two decimals, so that files are small and equal on every machine."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
