"""The rows of one step: filled by the policy, sent as a plan message."""

from dataclasses import dataclass, field
from typing import NamedTuple

from taco_proto.steps import EMPTY, IntArray
from taco_scheduler.state.sequence import Sequence


class SavedStates(NamedTuple):
    """The states that a step saves, one entry each; see `StepPlan`."""

    slots: IntArray
    positions: IntArray
    snapshots: IntArray


NOTHING_SAVED = SavedStates(EMPTY, EMPTY, EMPTY)


@dataclass(slots=True)
class StepRows:
    """Rows of one step, decodes first.

    Attributes:
        decode_slots: slots of the rows of one token.
        max_drafts: draft tokens that each decode may verify.
        chunk_slots, chunk_tokens: rows that compute a chunk of a prompt, or all of it.
        joined: sequences that run for the first time in this step.
        appended_slots, appended_blocks: growth of block tables, one entry a block.
        cut_chunk: index of the chunk that does not reach the end of its prompt; None: all do.
        cut_priority: priority of the cut prompt.
    """

    decode_slots: IntArray = field(default_factory=lambda: EMPTY)
    max_drafts: IntArray = field(default_factory=lambda: EMPTY)
    chunk_slots: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    joined: list[Sequence] = field(default_factory=list)
    appended_slots: list[int] = field(default_factory=list)
    appended_blocks: list[int] = field(default_factory=list)
    cut_chunk: int | None = None
    cut_priority: int = 0

    def __bool__(self) -> bool:
        return self.num_tokens > 0

    @property
    def num_tokens(self) -> int:
        return len(self.decode_slots) + sum(self.chunk_tokens)

    def add_chunk(self, slot: int, num_tokens: int) -> None:
        self.chunk_slots.append(slot)
        self.chunk_tokens.append(num_tokens)
