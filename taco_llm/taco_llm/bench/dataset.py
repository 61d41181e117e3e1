"""Reads prompts and answers from a file: ShareGPT's JSON, or JSON lines."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_proto.errors import ConfigurationError

_HUMAN = ("human", "user")
_PROMPT_FIELDS = ("prompt", "text", "content")
_ANSWER_FIELDS = ("completion", "output", "answer")


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and the dataset's own answer, or None."""

    prompt: str
    answer: str | None


def read_dataset(path: str) -> list[Sample]:
    """The usable samples of the file, in file order.

    Raises:
        ConfigurationError: the file cannot be read, has another format, or contains no sample.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigurationError(f"cannot read the dataset {path}: {reason}") from None
    samples = [sample for entry in _entries(path, text) if (sample := _sample(entry)) is not None]
    if not samples:
        raise ConfigurationError(
            f"the dataset {path} contains no prompt: it must be ShareGPT's JSON, a list of "
            '{"conversations": [{"from": "human", "value": …}, …]}, or lines of {"prompt": …}'
        )
    return samples


def _entries(path: str, text: str) -> Iterator[Any]:
    """The elements of a JSON list, or the values of JSON lines."""
    if text.lstrip().startswith("["):
        try:
            yield from json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"the dataset {path} is not valid JSON: {error}") from None
        return
    # JSON strings may have characters that `splitlines` takes for line breaks.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError:
            raise ConfigurationError(
                f"the dataset {path} is neither a JSON list nor JSON lines (line {number})"
            ) from None


def _sample(entry: Any) -> Sample | None:
    if not isinstance(entry, dict):
        return None
    turns = entry.get("conversations") or entry.get("conversation") or entry.get("messages")
    if isinstance(turns, list):
        return _first_exchange(turns)
    prompt = _first_text(entry, _PROMPT_FIELDS)
    return None if prompt is None else Sample(prompt, _first_text(entry, _ANSWER_FIELDS))


def _first_exchange(turns: list[Any]) -> Sample | None:
    """The first two turns, as other benchmarks use them. The first turn must be the human's."""
    texts = [_first_text(turn, ("value", "content")) for turn in turns[:2]]
    if len(texts) < 2 or not texts[0] or not texts[1]:
        return None
    if turns[0].get("from", turns[0].get("role", "human")) not in _HUMAN:
        return None
    return Sample(texts[0], texts[1])


def _first_text(entry: Any, names: tuple[str, ...]) -> str | None:
    """The first non-empty string among the fields `names`."""
    if not isinstance(entry, dict):
        return None
    values = (entry.get(name) for name in names)
    return next((value for value in values if isinstance(value, str) and value), None)
