"""What goes between the prefix cache and the disk tier, by way of the host tier."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from taco_proto.kv_tiers import StoreCommand, StoredBlock, StoreReport
from taco_scheduler.kv.disk_tier import DiskTier, chain
from taco_scheduler.kv.host_residents import HostResidents
from taco_scheduler.kv.host_tier import HostTier
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.node import NOWHERE, Node
from taco_scheduler.kv.radix_tree import RadixTree

MAX_UNSAVED = 1024  # prompts; beyond that the oldest are not saved
MAX_SAVED_BLOCKS = 64  # copied to the host for it in one step
MAX_LOOKED_AT = 8  # prompts, each time


@dataclass(slots=True, eq=False)
class Reading:
    """Files that are read for a sequence.

    Attributes:
        tier: that reads them.
        keys: of the files, as far as they are not known to be done.
    """

    tier: DiskTier
    keys: list[bytes] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        while self.keys and not self.tier.is_reading(self.keys[-1]):
            self.keys.pop()
        return not self.keys


@dataclass(slots=True, eq=False)
class _Unsaved:
    namespace: CacheNamespace
    tokens: bytes
    blocks: list[StoredBlock] = field(default_factory=list)
    num_saved: int = 0


class DiskTraffic:
    """Writes prompts to disk once they are computed, and reads them when they are asked for.

    A prompt is written from its beginning on, so that whoever starts the server next can find it.
    What the host does not hold of it is copied there first. What is read is kept on the host until
    its sequence is admitted.
    """

    def __init__(
        self, disk: DiskTier, host: HostTier, residents: HostResidents, tree: RadixTree
    ) -> None:
        self._disk = disk
        self._host = host
        self._residents = residents
        self._tree = tree
        self._max_read = host.num_blocks // 4  # host blocks with what was read, or is
        self._unsaved: OrderedDict[object, _Unsaved] = OrderedDict()
        self._read: OrderedDict[bytes, tuple[StoredBlock, int]] = OrderedDict()
        self._blocks_read: dict[bytes, StoredBlock] = {}  # those that are under way

    # ------------------------------------------------------------------ write

    def note(self, owner: object, namespace: CacheNamespace, tokens: bytes) -> None:
        """A sequence has computed more of its prompt, `tokens` in all."""
        self._unsaved[owner] = _Unsaved(namespace, tokens)
        if len(self._unsaved) > MAX_UNSAVED:
            self._unsaved.popitem(last=False)

    def save(self, *, may_copy: bool) -> None:
        """Writes what lies on the host; `may_copy`: copies the rest there with the next step."""
        if not self._disk.is_known:
            return
        budget = MAX_SAVED_BLOCKS if may_copy else 0
        for owner, unsaved in list(self._unsaved.items())[:MAX_LOOKED_AT]:
            num_copied = self._save(unsaved, budget)
            if num_copied is None:
                del self._unsaved[owner]
            else:
                budget -= num_copied

    def _save(self, unsaved: _Unsaved, budget: int) -> int | None:
        """Returns how many blocks are copied for it; None if there is nothing left to do."""
        if not unsaved.blocks:
            unsaved.blocks = list(chain(unsaved.namespace, unsaved.tokens, self._tree.block_bytes))
            self._disk.touch(unsaved.blocks)
        blocks = unsaved.blocks
        first = unsaved.num_saved
        while first < len(blocks) and self._disk.has(blocks[first]):
            first += 1
        if first < len(blocks) and not self._disk.wants(blocks[first]):
            return None
        places = self._tree.path(unsaved.namespace, unsaved.tokens)
        end = first
        while end < len(places) and self._is_on_host(*places[end]):
            end += 1
        sources = [node.host_blocks[i] for node, i in places[first:end]]
        num_written = self._disk.write(list(zip(sources, blocks[first:end], strict=True)))
        self._host.retain(sources[:num_written])
        unsaved.num_saved = first + num_written
        if end >= len(places) or num_written < end - first:
            return None
        return self._copy(places[end:], budget)

    def _copy(self, places: list[tuple[Node, int]], budget: int) -> int | None:
        num_copied = 0
        for node, i in places:
            if node.num_uses < self._residents.min_uses:
                return None if num_copied == 0 else num_copied
            if i >= len(node.blocks):
                break
            is_copied = bool(node.host_blocks) and node.host_blocks[i] != NOWHERE
            if num_copied == budget or is_copied or node.step_id is not None:
                break
            if not self._residents.copy(node, i):
                break
            num_copied += 1
        return num_copied

    def _is_on_host(self, node: Node, i: int) -> bool:
        return bool(node.host_blocks) and self._host.is_readable(node.host_blocks[i])

    # ------------------------------------------------------------------- read

    def read_ahead(
        self, namespace: CacheNamespace, tokens: bytes, num_matched: int
    ) -> Reading | None:
        """Reads what is on disk of a prefix behind its first `num_matched` blocks; None if it is
        not known yet what is on disk.
        """
        if not self._disk.is_known:
            return None
        reading = Reading(self._disk)
        if not self._disk.num_files:
            return reading
        blocks = list(chain(namespace, tokens, self._tree.block_bytes))
        num_stored = self._disk.stored(blocks)
        self._disk.touch(blocks[:num_stored])
        wanted = blocks[num_matched:num_stored]
        new = [b for b in wanted if b.key not in self._read and not self._disk.is_reading(b.key)]
        num_read = len(self._read) + len(self._blocks_read)
        while self._read and num_read + len(new) > self._max_read:
            self._drop(next(iter(self._read)))
            num_read -= 1
        new = new[: max(0, self._max_read - num_read)]
        targets = self._residents.take(len(new))
        new = new[: len(targets)]
        if new:
            self._blocks_read.update((block.key, block) for block in new)
            self._disk.read([(b.key, target) for b, target in zip(new, targets, strict=True)])
        reading.keys = [block.key for block in wanted if self._disk.is_reading(block.key)]
        return reading

    def find(self, namespace: CacheNamespace, tokens: bytes, num_matched: int) -> list[bytes]:
        """The keys of what was read of a prefix behind its first `num_matched` blocks."""
        if not self._read:
            return []
        found = []
        for i, block in enumerate(chain(namespace, tokens, self._tree.block_bytes)):
            if i >= num_matched:
                if self._read.get(block.key, (None, NOWHERE))[0] != block:
                    break
                found.append(block.key)
        return found

    def pop(self, keys: Iterable[bytes]) -> list[int]:
        """The host blocks of what was read, which are the caller's from now on."""
        return [self._read.pop(key)[1] for key in keys]

    def _drop(self, key: bytes) -> None:
        self._host.release(self.pop([key]))

    # --------------------------------------------------------------- messages

    def next_command(self) -> StoreCommand | None:
        self.save(may_copy=False)
        return self._disk.next_command()

    def take(self, report: StoreReport) -> None:
        """Takes a report of the worker; what it says of keys that nobody waits for is ignored."""
        released, loaded = self._disk.take(report)
        self._host.release(released)
        for key, host_block in loaded.items():
            block = self._blocks_read.pop(key)
            self._host.fill(host_block)
            self._read[key] = block, host_block
        for key in report.failed:
            self._blocks_read.pop(key, None)
