"""Cache breakpoints: places in a conversation up to which the prefix cache keeps its prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """The end of a message, or of one part of its content.

    Attributes:
        message: index of the message.
        part: index of the part; None: the end of the message.
        seconds: how long the prefix cache keeps the prompt up to here.
    """

    message: int
    part: int | None
    seconds: float


def drop_covered(breakpoints: Sequence[Breakpoint]) -> list[Breakpoint]:
    """Drops breakpoints, given in order, that a later one keeps for at least as long."""
    kept: list[Breakpoint] = []
    for breakpoint_ in reversed(breakpoints):
        if breakpoint_.seconds > max((later.seconds for later in kept), default=0.0):
            kept.append(breakpoint_)
    return kept


def with_other_text_after(
    place: Breakpoint, messages: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The conversation with different text after a place.

    The prompts of both conversations are equal up to that place, wherever the template writes it.
    The number of messages does not change: some templates write the system prompt into the first
    question and reject a conversation without one.
    """
    own = messages[place.message]
    later = messages[place.message + 1 :]
    changed: list[Mapping[str, Any]] = [*messages[: place.message], own]
    if place.part is not None and place.part + 1 < len(own["content"]):
        kept = own["content"][: place.part + 1]
        next_text = own["content"][place.part + 1]["text"]
        changed[-1] = {**own, "content": [*kept, {"type": "text", "text": _other(next_text)}]}
    changed += [{"role": each["role"], "content": _other(_text(each))} for each in later]
    return changed


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix of two lists."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # bisection, since comparing slices is fast
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else content[0]["text"]


def _other(text: str) -> str:
    """A text that differs from `text` in the first character, even if a template trims both."""
    return "," if text.lstrip().startswith(".") else "."
