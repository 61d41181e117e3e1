"""Draws the services and their streams for docs/architecture.md.

python -m bench.pictures.architecture      # writes docs/images/architecture.svg
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.pictures.svg import SANS, SCHEMES, document, element, text

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "architecture.svg"
_WIDTH, _HEIGHT = 960, 444
_COLOURS = SCHEMES[0]
_ARROW = "arrow"


@dataclass(frozen=True, slots=True)
class Box:
    """A process, or a library inside one.

    Attributes:
        lines: what it does, one line each.
        fill: CSS colour of its ground.
        is_optional: drawn with a dashed edge.
    """

    x: float
    y: float
    width: float
    height: float
    title: str
    lines: Sequence[str] = ()
    fill: str = "#f6f8fa"
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """A straight line from (x, y) to (to_x, to_y); its labels are centred above it."""

    x: float
    y: float
    to_x: float
    to_y: float
    labels: Sequence[str] = ()
    both_ways: bool = False
    is_optional: bool = False


_OURS = "#fff4e6"
BOXES = (
    Box(16, 84, 148, 62, "OpenAI client", ("SDK, curl, LangChain",)),
    Box(16, 214, 148, 62, "internal service", ("Inference gRPC API",)),
    Box(
        264,
        60,
        176,
        240,
        "gateway",
        (
            "text ↔ token ids",
            "no torch, no state",
            "",
            "1 check key and fields",
            "2 chat template",
            "3 tokenize",
            "8 detokenize,",
            "   stop strings, SSE",
        ),
        _OURS,
    ),
    Box(
        540,
        60,
        176,
        240,
        "scheduler",
        (
            "who runs in a step,",
            "where its KV lives",
            "no torch",
            "",
            "4 admit, choose worker",
            "5 fill the step, take",
            "   blocks, preempt",
            "7 append tokens, stop",
        ),
        _OURS,
    ),
    Box(812, 60, 132, 108, "worker", ("6 forward pass,", "   sample", "KV and model"), _OURS),
    Box(812, 192, 132, 108, "worker", ("6 forward pass,", "   sample", "KV and model"), _OURS),
    Box(
        812,
        340,
        132,
        86,
        "draft worker",
        ("proposes tokens", "on CPU cores"),
        is_optional=True,
    ),
    Box(
        264,
        340,
        452,
        66,
        "Redis",
        ("optional: keys, limits and the registry of schedulers",),
        is_optional=True,
    ),
)
ARROWS = (
    Arrow(164, 115, 264, 115, ("HTTP", "SSE"), both_ways=True),
    Arrow(164, 245, 264, 245, ("gRPC",), both_ways=True),
    Arrow(440, 150, 540, 150, ("Generate:", "requests →"), both_ways=True),
    Arrow(716, 115, 812, 115, ("Attach:", "plan →"), both_ways=True),
    Arrow(716, 245, 812, 245, ("plan →",), both_ways=True),
    Arrow(812, 376, 716, 290, (), both_ways=True, is_optional=True),
    Arrow(352, 300, 352, 340, (), is_optional=True),
    Arrow(628, 300, 628, 340, (), is_optional=True),
)
_UNDER_ARROWS = ((490, 168, "← tokens"), (764, 133, "← output"), (764, 263, "← output"))


def main() -> None:
    PICTURE.write_text(picture())
    print(f"written: {PICTURE}")


def picture() -> str:
    tip = element("path", d="M0 0L8 4L0 8z", fill=_COLOURS.muted)
    marker = element(
        "marker",
        tip,
        id=_ARROW,
        viewBox="0 0 8 8",
        refX=8,
        refY=4,
        markerWidth=7,
        markerHeight=7,
        orient="auto-start-reverse",
    )
    return document(
        _WIDTH,
        _HEIGHT,
        "Clients ask a gateway over HTTP or gRPC; the gateway has one stream to the scheduler; "
        "workers dial the scheduler and run the steps that it plans",
        element("defs", marker),
        element("rect", width=_WIDTH, height=_HEIGHT, rx=8, fill=_COLOURS.background),
        text(16, 30, "One request, steps 1 to 8", font_size=16, font_weight=600),
        *(part for arrow in ARROWS for part in _arrow(arrow)),
        *(_label(*label) for label in _UNDER_ARROWS),
        *(part for box in BOXES for part in _box(box)),
        font_family=SANS,
        font_size=12,
        fill=_COLOURS.text,
    )


def _box(box: Box) -> Iterator[str]:
    edge = {"stroke_dasharray": "5 4"} if box.is_optional else {}
    yield element(
        "rect",
        x=box.x,
        y=box.y,
        width=box.width,
        height=box.height,
        rx=8,
        fill=box.fill,
        stroke=_COLOURS.ours if box.fill == _OURS else _COLOURS.theirs,
        **edge,
    )
    yield text(box.x + 14, box.y + 26, box.title, font_size=14, font_weight=600)
    for number, line in enumerate(box.lines):
        indent = 10.0 * line.startswith(" ")
        y = box.y + 48 + 22 * number
        yield text(box.x + 14 + indent, y, line.strip(), fill=_COLOURS.muted)


def _arrow(arrow: Arrow) -> Iterator[str]:
    yield element(
        "path",
        d=f"M{arrow.x} {arrow.y}L{arrow.to_x} {arrow.to_y}",
        stroke=_COLOURS.muted,
        stroke_width=1.5,
        marker_end=f"url(#{_ARROW})",
        **({"marker_start": f"url(#{_ARROW})"} if arrow.both_ways else {}),
        **({"stroke_dasharray": "5 4"} if arrow.is_optional else {}),
    )
    middle = (arrow.x + arrow.to_x) / 2
    for number, label in enumerate(reversed(arrow.labels)):
        yield _label(middle, arrow.y - 9 - 16 * number, label)


def _label(x: float, y: float, content: str) -> str:
    return text(x, y, content, text_anchor="middle", fill=_COLOURS.text)


if __name__ == "__main__":
    main()
