"""Disk transfers: write cached prefixes to disk and read them back, through the host tier."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby, takewhile
from operator import itemgetter

from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_scheduler.kv.disk_index import DiskFile, DiskIndex
from taco_scheduler.kv.host_offload import HostOffload
from taco_scheduler.kv.host_transfers import HostTransfers
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.radix_node import NO_BLOCK, Node, Root
from taco_scheduler.kv.radix_tree import RadixTree
from taco_scheduler.kv.tree_cursor import TreeCursor

MAX_UNSAVED = 1024  # prefixes; beyond that the oldest are not saved
MAX_SAVED_BLOCKS = 64  # copied to the host in one step, or written in one call of `save`
MAX_LOOKED_AT = 8  # unfinished prefixes that one call of `save` examines


@dataclass(slots=True, eq=False)
class PrefixRead:
    """Files that are read for a sequence.

    Attributes:
        keys: of the files whose reads are not known to be done.
    """

    index: DiskIndex
    keys: list[bytes] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        while self.keys and not self.index.is_reading(self.keys[-1]):
            self.keys.pop()
        return not self.keys


@dataclass(slots=True, eq=False)
class PrefixSave:
    """A prefix that is written to disk, and how far that has come.

    Attributes:
        tokens: packed token ids of the prefix, and of what follows it.
        num_blocks: length of the prefix in blocks; grows while a sequence computes it.
        files: of the prefix's first blocks.
        was_touched: the files have counted as used.
        cursor: where the next block to save is in the radix tree.
    """

    namespace: CacheNamespace
    tokens: bytes
    num_blocks: int
    files: list[DiskFile] = field(default_factory=list)
    was_touched: bool = False
    cursor: TreeCursor = field(default_factory=TreeCursor)


@dataclass(slots=True)
class _Budget:
    """Blocks that one call of `save` may still copy to the host, and write."""

    copies: int
    writes: int


class DiskTransfers:
    """Writes computed prefixes to disk, and reads prefixes of waiting sequences.

    A prefix is written from its beginning on, so that a restarted server can find it. Blocks that
    the host tier lacks are copied there first. Blocks that were read stay on the host until their
    sequence is admitted.

    Attributes:
        may_write: since the last `save`, copies to the host were done or space became free.
    """

    exists = True

    def __init__(
        self, disk: DiskIndex, host: HostTransfers, host_cache: HostOffload, tree: RadixTree
    ) -> None:
        self.may_write = False
        self._disk = disk
        self._host = host
        self._host_cache = host_cache
        self._tree = tree
        self._max_read = host.num_blocks // 4  # host blocks for reads
        self._unsaved: OrderedDict[PrefixSave, None] = OrderedDict()
        self._to_flush: deque[Node] | None = None  # None before a flush
        self._awaits_earlier_jobs = False  # a flush begins when all are reported
        self._read: OrderedDict[bytes, int] = OrderedDict()  # host blocks

    # ------------------------------------------------------------------ write

    def save_prefix(self, save: PrefixSave) -> None:
        """Write a prefix to disk, or what a sequence has computed of it since the last call."""
        self._unsaved[save] = None
        if len(self._unsaved) > MAX_UNSAVED:
            self._unsaved.popitem(last=False)

    def discard(self, save: PrefixSave | None, namespace: CacheNamespace, tokens: bytes) -> None:
        """Delete the files of a failed sequence that no other file continues.

        Args:
            save: the sequence's blocks are not saved from now on; None: they never were.
        """
        if save is not None:
            self._unsaved.pop(save, None)
        self._disk.discard(self._disk.walk(namespace, tokens))

    def flush(self, nodes: Iterable[Node]) -> None:
        """Write the prefixes that end with these nodes, as far as there is space.

        They evict files of other prefixes, and never each other's files.
        """
        if self._to_flush is None:
            self._disk.keeps_all = True
            self._unsaved.clear()  # these prefixes are cached, so `nodes` has them
            self._to_flush = deque(nodes)
            self._awaits_earlier_jobs = True

    @property
    def outcomes(self) -> Mapping[str, int]:
        """See `DiskIndex`."""
        return self._disk.outcomes

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved or self._to_flush)

    @property
    def is_flushed(self) -> bool:
        """Whether the flush is done: no write is queued or under way."""
        return self._to_flush is not None and not self.has_unsaved and not self._disk.num_writing

    def save(self, *, may_copy: bool) -> None:
        """Write blocks that are on the host.

        Args:
            may_copy: copy other blocks to the host with the next step.
        """
        if not self._disk.is_known or not (may_copy or self.may_write):
            return
        if self._awaits_earlier_jobs and not self._begin_flush():
            return
        self.may_write = False
        budget = _Budget(MAX_SAVED_BLOCKS if may_copy else 0, MAX_SAVED_BLOCKS)
        num_waiting = 0
        for prefix in self._prefixes_to_save():
            if self._save(prefix, budget):
                del self._unsaved[prefix]
                continue
            num_waiting += 1
            if num_waiting == MAX_LOOKED_AT:
                break

    def _begin_flush(self) -> bool:
        """Begin a flush when the worker has reported every earlier write and read.

        If one of those fails, its file and all files behind it are lost. The flush must see that,
        or it would skip these blocks as saved.

        Returns:
            False if a report is missing.
        """
        if self._disk.num_writing or self._disk.num_reading:
            return False
        self._awaits_earlier_jobs = False
        while self._read:  # no sequence will use these blocks
            self._drop(next(iter(self._read)))
        return True

    def _prefixes_to_save(self) -> Iterator[PrefixSave]:
        yield from list(self._unsaved)
        while self._to_flush:
            node = self._to_flush.popleft()
            prefix = _prefix_of(node)
            if prefix is not None:
                namespace, tokens = prefix
                save = PrefixSave(namespace, tokens, len(tokens) // self._tree.block_bytes)
                self._unsaved[save] = None
                yield save

    def _save(self, prefix: PrefixSave, budget: _Budget) -> bool:
        """Save blocks of a prefix as the budget allows; returns whether nothing is left to do."""
        namespace, tokens, size = prefix.namespace, prefix.tokens, self._tree.block_bytes
        files = prefix.files = self._disk.walk(namespace, tokens, prefix.files, prefix.num_blocks)
        if not prefix.was_touched:
            self._disk.touch(files)
            prefix.was_touched = True
        places = prefix.cursor.walk(self._tree, namespace, tokens, len(files), prefix.num_blocks)
        sources: list[int] = []
        place = next(places, None)
        while place is not None and len(sources) < budget.writes and self._is_on_host(*place):
            node, i = place
            sources.append(node.host_blocks[i])
            place = next(places, None)
        if sources:
            first = len(files) * size
            starts = range(first, first + len(sources) * size, size)
            blocks = [(s, tokens[at : at + size]) for s, at in zip(sources, starts, strict=True)]
            new = self._disk.write(namespace, files[-1] if files else None, blocks)
            self._host.retain(sources[: len(new)])
            files += new
            budget.writes -= len(new)
            if len(new) < len(sources):
                return True
        return place is None or not self._copy(chain([place], places), budget)

    def _copy(self, places: Iterable[tuple[Node, int]], budget: _Budget) -> bool:
        """Copy blocks of a prefix to the host, as the budget and space allow.

        Returns:
            False if the first node has too few uses.
        """
        is_first = True
        for node, group in groupby(places, key=itemgetter(0)):
            if node.num_uses < self._host_cache.min_uses:
                return not is_first
            is_first = False
            if node.step_id is not None:
                break
            wanted: list[int] = []
            is_whole = True
            for _, i in group:
                # The copies of nodes above may have evicted the end of this one.
                is_copied = i < len(node.host_blocks) and node.host_blocks[i] != NO_BLOCK
                if len(wanted) == budget.copies or i >= len(node.blocks) or is_copied:
                    is_whole = False
                    break
                wanted.append(i)
            num_new = self._host_cache.copy(node, wanted) if wanted else 0
            budget.copies -= num_new
            if not is_whole or num_new < len(wanted):
                break
        return True

    def _is_on_host(self, node: Node, i: int) -> bool:
        return bool(node.host_blocks) and self._host.is_readable(node.host_blocks[i])

    # ------------------------------------------------------------------- read

    def read_ahead(
        self,
        namespace: CacheNamespace,
        tokens: bytes,
        num_matched: int,
        is_worth_it: Callable[[int, int], bool],
    ) -> PrefixRead | None:
        """Read the files of a prefix behind its first `num_matched` blocks, if that is faster.

        Otherwise one block is read while no others are, to measure the time again.

        Args:
            is_worth_it: whether to read a number of blocks, after a number of others.

        Returns:
            The read to wait for; None if the files on disk are not known yet.
        """
        if not self._disk.is_known:
            return None
        files = self._disk.walk(namespace, tokens)
        self._disk.touch(files)
        files = list(takewhile(lambda file: file.is_written, files))
        wanted = [file.key for file in files[num_matched:]]
        if not wanted:
            return PrefixRead(self._disk)
        num_before = self._disk.num_reading + self._disk.num_writing
        if is_worth_it(len(wanted), num_before):
            self._begin_to_read(wanted)
            return PrefixRead(self._disk, [key for key in wanted if self._disk.is_reading(key)])
        if not self._disk.num_reading:
            self._begin_to_read(wanted[:1])
        return PrefixRead(self._disk)

    def _begin_to_read(self, wanted: list[bytes]) -> None:
        new = [k for k in wanted if k not in self._read and not self._disk.is_reading(k)]
        there = [key for key in wanted if key in self._read]
        for key in there:
            self._read.move_to_end(key)
        num_read = len(self._read) + self._disk.num_reading
        while len(self._read) > len(there) and num_read + len(new) > self._max_read:
            self._drop(next(iter(self._read)))
            num_read -= 1
        new = new[: max(0, self._max_read - num_read)]
        targets = self._host_cache.take(len(new))
        if targets:
            self._disk.read(list(zip(new, targets, strict=False)))

    def find(self, namespace: CacheNamespace, tokens: bytes, num_matched: int) -> list[bytes]:
        """Keys of the blocks that were read of a prefix behind its first `num_matched` blocks."""
        if not self._read:
            return []
        files = self._disk.walk(namespace, tokens)
        keys = [file.key for file in files[num_matched:]]
        return list(takewhile(self._read.__contains__, keys))

    def pop(self, keys: list[bytes]) -> list[int]:
        """Take host blocks that were read; the caller owns them then."""
        return [self._read.pop(key) for key in keys]

    def _drop(self, key: bytes) -> None:
        self._host.release(self.pop([key]))

    # --------------------------------------------------------------- messages

    def next_command(self) -> StoreCommand | None:
        self.save(may_copy=False)
        return self._disk.next_command()

    def take(self, report: StoreReport) -> None:
        """Take a report of the worker. Keys of no command under way are ignored."""
        self.may_write = True
        released, loaded = self._disk.take(report)
        self._host.release(released)
        for key, host_block in loaded.items():
            self._host.fill(host_block)
            self._read[key] = host_block


def _prefix_of(node: Node) -> tuple[CacheNamespace, bytes] | None:
    """The prefix that ends with a node; None if the node left the tree."""
    keys = []
    while node.parent is not None:
        keys.append(node.key)
        node = node.parent
    if not isinstance(node, Root):
        return None
    assert isinstance(node.namespace, CacheNamespace)
    return node.namespace, b"".join(reversed(keys))
