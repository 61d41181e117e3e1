"""The rows of one step, as the policy fills them and the planner sends them."""

from dataclasses import dataclass, field

from taco_proto.steps import EMPTY, IntArray
from taco_scheduler.state.sequence import Sequence


@dataclass(slots=True)
class StepRows:
    """The rows of one step, decodes first.

    Attributes:
        decode_slots: rows of one token whose block table was long enough or has grown.
        max_drafts: drafts that each of them may verify.
        chunk_slots, chunk_tokens: rows that compute a part of a prompt, or all of it.
        joined: sequences whose first row this is.
        appended_slots, appended_blocks: growth of block tables, one entry a block.
        cut_chunk: which chunk does not reach the end of its prompt; None: all of them do.
        cut_priority: the priority of that prompt.
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
