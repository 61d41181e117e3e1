"""What the block manager's state machine test knows: sequences, plans, and all tiers' contents."""

import struct
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from taco_proto.steps import BlockCopies
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.namespace import CacheNamespace

BLOCK_SIZE = 2
NUM_BLOCKS = 24
NOT_SENT = 2**62  # the step that comes next

Tokens = tuple[int, ...]
Prefix = tuple[CacheNamespace, Tokens]  # whole blocks: what a cached block is found by
Contents = dict[int, list[Prefix | None]]  # by block: the tokens up to that of each slot


def pack(tokens: Tokens) -> memoryview:
    return memoryview(struct.pack(f"<{len(tokens)}i", *tokens))


def num_blocks_for(num_tokens: int) -> int:
    return (num_tokens + BLOCK_SIZE - 1) // BLOCK_SIZE


def contents_of(prefix: Prefix) -> list[Prefix | None]:
    """What a block that ends a prefix must hold."""
    namespace, tokens = prefix
    return [(namespace, tokens[: len(tokens) - i]) for i in reversed(range(BLOCK_SIZE))]


@dataclass(eq=False)
class Sequence:
    namespace: CacheNamespace
    tokens: Tokens
    table: BlockTable
    num_cached_blocks: int
    num_reserved: int
    num_pinned: int  # blocks
    num_planned: int = field(init=False)  # tokens whose KV is there when all plans have run
    num_computed: int = field(init=False)  # tokens whose KV is there
    is_sampling: bool = False
    sealed: bool = False

    def __post_init__(self) -> None:
        self.num_planned = self.num_computed = self.num_cached_blocks * BLOCK_SIZE

    def prefix(self, num_blocks: int) -> Prefix:
        return self.namespace, self.tokens[: num_blocks * BLOCK_SIZE]

    def pinned(self) -> list[Prefix]:
        return [self.prefix(i + 1) for i in range(self.num_pinned)]


@dataclass(eq=False)
class Plan:
    """A sequence's part in a step; `emitted` is what it will turn out to have sampled."""

    sequence: Sequence
    start: int
    written: Tokens  # up to the last token that gets a slot
    num_tokens: int
    emitted: Tokens
    slots: list[tuple[list[Prefix | None], int]] = field(default_factory=list)


@dataclass(eq=False)
class Step:
    step_id: int
    plans: list[Plan]
    copies: BlockCopies | None

    @property
    def loads(self) -> list[int]:
        return [] if self.copies is None else self.copies.load_sources.tolist()

    @property
    def offloads(self) -> list[int]:
        return [] if self.copies is None else self.copies.offload_targets.tolist()


@dataclass
class Cached:
    """A prefix's last block: where it is, and which steps must succeed for that.

    Attributes:
        filled_by: the step that computes or loads the device block; NOT_SENT: a load, not sent.
        copied_by: the step that copies it to the host; NOT_SENT: it was not sent.
        source: the host block that a load reads.
        num_uses: sequences that have had a part in it.
    """

    block: int | None
    filled_by: int | None = None
    host_block: int | None = None
    copied_by: int | None = None
    source: int | None = None
    last_unpin: int = -1
    num_uses: int = 0


@dataclass(eq=False)
class Pin:
    """A prefix that is kept up to a time."""

    namespace: CacheNamespace
    tokens: Tokens
    until: int
    owner: str

    @property
    def num_blocks(self) -> int:
        return len(self.tokens) // BLOCK_SIZE

    def prefixes(self) -> list[Prefix]:
        ends = range(BLOCK_SIZE, len(self.tokens) + 1, BLOCK_SIZE)
        return [(self.namespace, self.tokens[:end]) for end in ends]


class Memory:
    """The blocks of both tiers as the worker has them once all plans that were sent have run."""

    def __init__(self) -> None:
        self.device: Contents = {}
        self.host: Contents = {}

    def copy(self, copies: BlockCopies) -> None:
        for column in (copies.offload_targets, copies.load_targets):
            assert len(np.unique(column)) == len(column), "two copies have one target"
        for source, target in zip(copies.offload_sources, copies.offload_targets, strict=True):
            self.host[int(target)] = list(self.device_block(int(source)))
        for source, target in zip(copies.load_sources, copies.load_targets, strict=True):
            self.device[int(target)] = list(self.host[int(source)])

    def device_block(self, block: int) -> list[Prefix | None]:
        return self.device.get(block, [None] * BLOCK_SIZE)

    def write(self, plan: Plan) -> None:
        namespace, blocks = plan.sequence.namespace, plan.sequence.table.blocks
        for position in range(plan.start, len(plan.written)):
            slots = self.device.setdefault(blocks[position // BLOCK_SIZE], [None] * BLOCK_SIZE)
            slots[position % BLOCK_SIZE] = (namespace, plan.written[: position + 1])
            plan.slots.append((slots, position % BLOCK_SIZE))

    def fail(self, step: Step) -> None:
        """The content of the blocks that the step should have filled is unknown."""
        for plan in step.plans:
            for slots, offset in plan.slots:
                slots[offset] = None
        if step.copies is not None:
            for block in step.copies.offload_targets.tolist():
                self.host[block] = [None] * BLOCK_SIZE
            for block in step.copies.load_targets.tolist():
                self.device[block] = [None] * BLOCK_SIZE


def count_copies(steps: list[Step]) -> Counter[int]:
    """How many copies in flight read or write each host block."""
    return Counter(block for step in steps for block in step.loads + step.offloads)
