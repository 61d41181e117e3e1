"""The JSON of many log probabilities, written piece by piece.

Log probabilities of the whole vocabulary take seconds to write. A thread does that: between pieces
it lets the event loop run, and with it other requests.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel

from taco_gateway.protocol.logprobs import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    LogprobFormatter,
    PromptLogprob,
    PromptLogprobs,
)
from taco_gateway.text.output.token_logprobs import TokenLogprob

MAX_ENTRIES = 2048  # that the event loop writes itself
_PIECE = 1024  # entries that are written at once

T = TypeVar("T")


def has_many(rows: Iterable[TokenLogprob | None]) -> bool:
    """Whether rows have more entries than the event loop should write."""
    num_entries = 0
    for row in rows:
        num_entries += 0 if row is None else 1 + len(row.top)
        if num_entries > MAX_ENTRIES:
            return True
    return False


def chat_json(formatter: LogprobFormatter, rows: Sequence[TokenLogprob]) -> str:
    """The JSON of `ChatLogprobs`."""
    if not has_many(rows):
        return formatter.chat(rows).model_dump_json()
    return f'{{"content":{entries_json(formatter, rows)},"refusal":null}}'


def entries_json(formatter: LogprobFormatter, rows: Sequence[TokenLogprob]) -> str:
    """The JSON of the entries of `ChatLogprobs`."""
    return f"[{','.join(_chat_rows(formatter, rows))}]"


def completion_json(columns: CompletionLogprobs) -> str:
    """The JSON of the columns."""
    num_entries = sum(len(top) for top in columns.top_logprobs if top is not None)
    if num_entries <= MAX_ENTRIES:
        return columns.model_dump_json()
    tops = ",".join("null" if top is None else _object(top.items()) for top in columns.top_logprobs)
    small = (
        f'"{name}":{_dumped(value)}'
        for name, value in (("tokens", columns.tokens), ("token_logprobs", columns.token_logprobs))
    )
    offsets = _dumped(columns.text_offset)
    return f'{{{",".join(small)},"top_logprobs":[{tops}],"text_offset":{offsets}}}'


def prompt_json(formatter: LogprobFormatter, rows: Sequence[TokenLogprob | None]) -> str:
    """The JSON of `PromptLogprobs`."""
    written = ("null" if row is None else _object(formatter.prompt_entries(row)) for row in rows)
    return f"[{','.join(written)}]"


@dataclass(slots=True)
class WrittenAnswer:
    """An answer with JSON that has been written already.

    Attributes:
        model: the answer, with places for that JSON.
        texts: what to write in the places, in their order: pairs of what the model's JSON has there
            and the JSON.
    """

    model: BaseModel
    texts: list[tuple[str, bytes]] = field(default_factory=list)

    def pieces(self) -> list[bytes]:
        """The JSON of the answer."""
        text, found = self.model.model_dump_json(), []
        for place, content in self.texts:
            before, _, text = text.partition(place)
            found += [before.encode(), content]
        return [*found, text.encode()]


class LogprobWriter:
    """Makes the log probabilities of one whole answer, large ones in a thread.

    Attributes:
        texts: see `WrittenAnswer`.
    """

    def __init__(self, formatter: LogprobFormatter) -> None:
        self._formatter = formatter
        self.texts: list[tuple[str, bytes]] = []

    async def chat(self, rows: Sequence[TokenLogprob]) -> ChatLogprobs:
        return ChatLogprobs(content=await self.entries(rows))

    async def entries(self, rows: Sequence[TokenLogprob]) -> list[ChatTokenLogprob]:
        """The entries of tokens in the form of chat."""
        if not has_many(rows):
            return self._formatter.chat(rows).content
        place = ChatTokenLogprob(token=_mark(), logprob=0, bytes=None, top_logprobs=[])
        await self._write(
            place.model_dump_json(), lambda: ",".join(_chat_rows(self._formatter, rows))
        )
        return [place]

    async def completion(
        self, rows: Iterable[TokenLogprob | None], columns: Callable[[], CompletionLogprobs]
    ) -> CompletionLogprobs:
        """Args:
        columns: makes the columns of `rows`.
        """
        if not has_many(rows):
            return columns()
        place = CompletionLogprobs(tokens=[_mark()])
        await self._write(place.model_dump_json(), lambda: completion_json(columns()))
        return place

    async def prompt(self, rows: Sequence[TokenLogprob | None]) -> PromptLogprobs:
        if not has_many(rows):
            return self._formatter.prompt(rows)
        mark = _mark()
        entry = PromptLogprob(logprob=0, rank=0, decoded_token="")
        place = f'[{{"{mark}":{entry.model_dump_json()}}}]'
        await self._write(place, lambda: prompt_json(self._formatter, rows))
        return [{mark: entry}]

    async def _write(self, place: str, write: Callable[[], str]) -> None:
        content = await asyncio.to_thread(lambda: write().encode())
        self.texts.append((place, content))


def _chat_rows(formatter: LogprobFormatter, rows: Iterable[TokenLogprob]) -> Iterator[str]:
    for row in rows:
        chosen = _dumped(formatter.chat_entry(row.chosen, row))
        entries = (formatter.chat_entry(candidate, row) for candidate in row.top)
        top = ",".join(_dumped(piece)[1:-1] for piece in _pieces(entries))
        yield f'{chosen[:-1]},"top_logprobs":[{top}]}}'


def _object(items: Iterable[tuple[str, Any]]) -> str:
    """A JSON object whose keys differ."""
    return f"{{{','.join(_dumped(dict(piece))[1:-1] for piece in _pieces(items))}}}"


def _pieces(entries: Iterable[T]) -> Iterator[list[T]]:
    left = iter(entries)
    while piece := list(islice(left, _PIECE)):
        yield piece


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _mark() -> str:
    """A text that no client can guess."""
    return f"written-{secrets.token_hex(16)}"
