"""Draws the recorded terminals of demo.json as one animated SVG, in the recorded times.

    python -m bench.pictures.terminal_picture      # writes docs/images/demo.svg

Every piece of output is a text that CSS shows at its second; the animation repeats. There is no
script in the file. Where a reader asks for less motion, or CSS is not supported, it shows the end.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.pictures.svg import document, element, text

RECORDING = Path(__file__).parent / "demo.json"
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "demo.svg"

_MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_FONT_SIZE, _COLUMN, _ROW = 12, 7.23, 17
_MARGIN, _BAR, _GAP = 14, 26, 12
_HOLD_S = 6.0  # seconds that the end is shown before the animation repeats
_TITLES = {"server": "the server", "client": "a client", "other": "an operator"}
_BACKGROUND, _FRAME, _TEXT, _MUTED, _TYPED = "#0d1117", "#30363d", "#c9d1d9", "#8b949e", "#ffa657"
_PARTS = re.compile(r"\r|\n|\x1b\[[0-9;?]*[A-Za-z]|[^\r\n\x1b]+")


@dataclass(frozen=True, slots=True)
class Piece:
    """A text on one row of a terminal.

    Attributes:
        shown, hidden: seconds; `hidden` is None where it stays.
    """

    row: int
    column: int
    content: str
    shown: float
    hidden: float | None = None


def main() -> None:
    PICTURE.write_text(picture(json.loads(RECORDING.read_text())))
    print(f"written: {PICTURE}")


def picture(recording: dict[str, Any]) -> str:
    columns: int = recording["columns"]
    events = recording["events"]
    duration = events[-1][0] + _HOLD_S
    width = round(columns * _COLUMN) + 2 * _MARGIN
    bodies: list[str] = []
    moments = Moments(duration)
    top = 0.0
    for name, title in _TITLES.items():
        screen = pieces([(s, output) for s, who, output in events if who == name], columns)
        typed = {p.row for p in screen if p.column == 0 and p.content.startswith(("$", ">"))}
        num_rows = 1 + max((piece.row for piece in screen), default=0)
        height = _BAR + num_rows * _ROW + _MARGIN
        bodies.append(
            element(
                "rect", x=0.5, y=top + 0.5, width=width - 1, height=height, rx=8,
                fill=_BACKGROUND, stroke=_FRAME,
            )
        )  # fmt: skip
        bodies.append(text(_MARGIN, top + 18, title, fill=_MUTED, font_size=11))
        for piece in screen:
            y = top + _BAR + _ROW * (piece.row + 0.75)
            bodies.append(_text(piece, y, moments, is_typed=piece.row in typed))
        top += height + _GAP
    style = element("style", "".join(("\n", *moments.rules())))
    date, machine = recording["date"], recording["machine"]
    return document(
        width,
        round(top - _GAP) + 1,
        "Three terminals: taco_llm serves a model, a client chats with it, an operator kills a "
        f"worker. Recorded on {date} on {machine['cores']} cores of an {machine['cpu']}.",
        style,
        *bodies,
        font_family=_MONOSPACE,
        font_size=_FONT_SIZE,
        fill=_TEXT,
    )


class Moments:
    """CSS classes that show texts from one second to another, of an animation of `duration`."""

    def __init__(self, duration: float) -> None:
        self._duration = duration
        self._names: dict[tuple[float, float | None], str] = {}

    def name(self, shown: float, hidden: float | None) -> str:
        return self._names.setdefault((shown, hidden), f"m{len(self._names)}")

    def rules(self) -> Iterator[str]:
        yield "@media (prefers-reduced-motion: no-preference){\n"
        # By the element's name: a more specific rule would override the names of the animations.
        yield f"text{{animation:{self._duration:.2f}s step-end infinite}}\n"
        for (shown, hidden), name in self._names.items():
            end = "" if hidden is None else f"{self._share(hidden)}{{opacity:0}}"
            yield (
                f".{name}{{animation-name:{name}}}"
                f"@keyframes {name}{{0%{{opacity:0}}{self._share(shown)}{{opacity:1}}{end}}}\n"
            )
        yield "}\n"

    def _share(self, seconds: float) -> str:
        return f"{seconds / self._duration:.2%}"


def pieces(events: list[tuple[float, str]], columns: int) -> list[Piece]:
    """What a terminal with this number of columns shows, as pieces that were written at once."""
    screen = _Screen(columns)
    for seconds, output in events:
        screen.write(seconds, output)
    return screen.pieces()


class _Screen:
    """Character cells and when they were written and overwritten.

    It knows what programs for a dumb terminal and progress bars write: line ends, carriage
    returns, wrapping, cursor up, and erasing to the end of the line. Other sequences are dropped.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._row = self._column = 0
        self._cells: dict[tuple[int, int], tuple[str, float]] = {}
        self._past: list[tuple[int, int, str, float, float | None]] = []

    def write(self, seconds: float, output: str) -> None:
        for part in _PARTS.findall(output):
            if part == "\n":
                self._row, self._column = self._row + 1, 0
            elif part == "\r":
                self._column = 0
            elif part == "\x1b[A":
                self._row = max(0, self._row - 1)
            elif part in ("\x1b[K", "\x1b[0K"):
                for column in range(self._column, self._columns):
                    self._put(self._row, column, " ", seconds)
            elif not part.startswith("\x1b"):
                for character in part:
                    if self._column == self._columns:
                        self._row, self._column = self._row + 1, 0
                    self._put(self._row, self._column, character, seconds)
                    self._column += 1

    def _put(self, row: int, column: int, character: str, seconds: float) -> None:
        before = self._cells.pop((row, column), None)
        if before is not None:
            self._past.append((row, column, *before, seconds))
        if before is not None or character != " ":
            self._cells[row, column] = (character, seconds)

    def pieces(self) -> list[Piece]:
        cells = self._past + [(*place, *cell, None) for place, cell in self._cells.items()]
        found: list[Piece] = []
        by_moment = sorted(cells, key=_order)
        for (shown, hidden, row), run in groupby(by_moment, lambda cell: (*cell[3:], cell[0])):
            content, start = "", 0
            for _, column, character, *_ in run:
                if content and column - start - len(content) > 1:
                    found.append(Piece(row, start, content, shown, hidden))
                    content = ""
                if not content:
                    start = column
                content = content.ljust(column - start) + character
            found.append(Piece(row, start, content, shown, hidden))
        return [piece for piece in found if piece.content.strip()]


def _order(cell: tuple[int, int, str, float, float | None]) -> tuple[float, ...]:
    """Puts side by side the cells of one row that were written, and overwritten, at once."""
    row, column, _, shown, hidden = cell
    return (shown, -1.0 if hidden is None else hidden, row, column)


def _text(piece: Piece, y: float, moments: Moments, *, is_typed: bool) -> str:
    indent = len(piece.content) - len(piece.content.lstrip())
    attributes: dict[str, object] = {"fill": _TYPED} if is_typed else {}
    if piece.hidden is not None:
        attributes["opacity"] = 0  # at the end, where there is no animation
    if piece.shown > 0.1:
        attributes["class"] = moments.name(piece.shown, piece.hidden)
    return element(
        "text",
        escape(piece.content.strip()).replace("  ", " \u00a0"),
        x=_MARGIN + _COLUMN * (piece.column + indent),
        y=y,
        **attributes,
    )


if __name__ == "__main__":
    main()
