"""Divides an answer into output items while it is generated."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from taco_gateway.protocol.responses_api.response_object import ItemStatus
from taco_gateway.protocol.responses_api.text_logprobs import TextLogprobs
from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.text.output.token_logprobs import TokenLogprob
from taco_gateway.text.response.response_delta import CallDelta

_NUM_ID_BYTES = 16


class ItemKind(Enum):
    """The kinds of items, with the prefixes of their ids."""

    REASONING = "rs"
    MESSAGE = "msg"
    FUNCTION_CALL = "fc"


@dataclass(slots=True)
class OutputItem:
    """An item of the output, which grows until it is complete.

    Attributes:
        index: of the item in the output.
        pieces: of its reasoning, text or arguments.
        logprobs: entries of the tokens of a message; empty: not requested.
        call_id, name: of a call.
    """

    kind: ItemKind
    index: int
    id: str
    status: ItemStatus = "in_progress"
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ChangeKind(Enum):
    ADDED = auto()
    EXTENDED = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an item.

    Attributes:
        text, logprobs: with which it was extended.
    """

    kind: ChangeKind
    item: OutputItem
    text: str = ""
    logprobs: Sequence[TokenLogprob] = ()


class OutputBuilder:
    """Builds the output of one response from its updates. A part of another kind ends an item.

    Args:
        gives_reasoning: False: the client wants no reasoning.

    Attributes:
        items: the output so far.
    """

    def __init__(self, *, gives_reasoning: bool) -> None:
        self.items: list[OutputItem] = []
        self._gives_reasoning = gives_reasoning
        self._logprobs = TextLogprobs()
        self._call_index = -1  # of the current call
        self._changes: list[Change] = []

    def add(self, update: TextUpdate) -> list[Change]:
        """Adds the new parts of the answer; returns the changes in their order."""
        self._logprobs.add(update.logprobs or ())
        if update.parsed is None:
            self._add_text(update.text)
        else:
            self._add_reasoning(update.parsed.reasoning)
            self._add_text(update.parsed.content)
            for call in update.parsed.calls:
                self._add_call(call)
        return self._take_changes()

    def end(self, *, is_complete: bool) -> list[Change]:
        """Ends the last item. An answer without any part is a message without text."""
        if not self.items:
            self._open(ItemKind.MESSAGE)
        self._close("completed" if is_complete else "incomplete")
        return self._take_changes()

    def _add_reasoning(self, text: str) -> None:
        if not text:
            return
        self._logprobs.drop(text)
        if self._gives_reasoning:
            self._extend(self._current(ItemKind.REASONING), text)

    def _add_text(self, text: str) -> None:
        if text:
            self._extend(self._current(ItemKind.MESSAGE), text, self._logprobs.take(text))

    def _add_call(self, call: CallDelta) -> None:
        self._logprobs.drop_all()
        if call.index != self._call_index:
            self._call_index = call.index
            self._open(ItemKind.FUNCTION_CALL, call.id or "", call.name or "")
        if call.arguments:
            self._extend(self.items[-1], call.arguments)

    def _current(self, kind: ItemKind) -> OutputItem:
        if not self.items or self.items[-1].kind is not kind:
            self._open(kind)
        return self.items[-1]

    def _open(self, kind: ItemKind, call_id: str = "", name: str = "") -> None:
        self._close("completed")
        own_id = f"{kind.value}_{secrets.token_hex(_NUM_ID_BYTES)}"
        self.items.append(OutputItem(kind, len(self.items), own_id, call_id=call_id, name=name))
        self._changes.append(Change(ChangeKind.ADDED, self.items[-1]))

    def _extend(self, item: OutputItem, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        item.pieces.append(text)
        item.logprobs += logprobs
        self._changes.append(Change(ChangeKind.EXTENDED, item, text, logprobs))

    def _close(self, status: ItemStatus) -> None:
        if self.items and self.items[-1].status == "in_progress":
            self.items[-1].status = status
            self._changes.append(Change(ChangeKind.DONE, self.items[-1]))

    def _take_changes(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes
