"""The host and disk tiers of a fake worker: shadows of what lies in them."""

from collections.abc import Callable

import numpy as np

from taco_proto.kv_tiers import StoreCommand, StoredBlock, StoreReport
from taco_proto.steps import BlockCopies, IntArray, WorkerInfo

GARBAGE = -8


class FakeTiers:
    """Moves blocks as plans and commands say, and checks that they can be.

    Attributes:
        host: [num_host_blocks, 2, block_size], tokens and positions; -1 where nothing was written.
        files: what the disk tier holds, by key.
        num_offloaded, num_loaded: blocks that were copied.
        num_read: files that were read.
        seconds_a_read: what each of them is said to have taken.
        is_full: no file can be written.
    """

    def __init__(self, info: WorkerInfo) -> None:
        self.host = np.full((info.num_host_blocks, 2, info.block_size), -1, dtype=np.int64)
        self.files: dict[bytes, tuple[StoredBlock, np.ndarray]] = {}
        self.num_offloaded = 0
        self.num_loaded = 0
        self.num_read = 0
        self.seconds_a_read = 0.001
        self.is_full = False
        self._num_disk_blocks = info.num_disk_blocks
        self._was_asked = False

    def copy(self, device: np.ndarray, copies: BlockCopies) -> None:
        """`device`: [num_blocks, 2, block_size]."""
        _check(copies.offload_sources, copies.offload_targets, len(device), len(self.host))
        _check(copies.load_sources, copies.load_targets, len(self.host), len(device))
        self.host[copies.offload_targets] = device[copies.offload_sources]
        device[copies.load_targets] = self.host[copies.load_sources]
        self.num_offloaded += copies.offload_sources.size
        self.num_loaded += copies.load_sources.size

    def spoil(self, device: np.ndarray, copies: BlockCopies) -> None:
        """What copies of a failed step leave behind."""
        self.host[copies.offload_targets] = GARBAGE
        device[copies.load_targets] = GARBAGE

    def reset(self) -> None:
        """A new link to a scheduler: it will be told what there is."""
        self._was_asked = False

    def store(self, command: StoreCommand, report: Callable[[StoreReport], None]) -> None:
        if not self._was_asked:
            self._was_asked = True
            found = tuple(block for block, _ in self._parents_first())
            report(StoreReport(found=found, is_complete=True))
        written, read, failed = [], [], []
        for host_block, block in command.writes:
            has_room = block.key in self.files or len(self.files) < self._num_disk_blocks
            if self.is_full or not has_room:
                failed.append(block.key)
                continue
            self.files[block.key] = block, self.host[host_block].copy()
            written.append(block.key)
        for key, host_block in command.reads:
            if key not in self.files:
                failed.append(key)
                continue
            self.host[host_block] = self.files[key][1]
            read.append(key)
        for key in command.deletes:
            self.files.pop(key, None)
        self.num_read += len(read)
        if written or read or failed:
            report(
                StoreReport(
                    written=tuple(written),
                    read=tuple(read),
                    read_seconds=len(read) * self.seconds_a_read,
                    failed=tuple(failed),
                )
            )

    def _parents_first(self) -> list[tuple[StoredBlock, np.ndarray]]:
        """Without blocks that no prefix leads to, which are gone then."""
        kept: dict[bytes, tuple[StoredBlock, np.ndarray]] = {}
        rest = dict(self.files)
        while nexts := {k: f for k, f in rest.items() if f[0].parent in kept or not f[0].parent}:
            kept |= nexts
            rest = {k: f for k, f in rest.items() if k not in kept}
        self.files = kept
        return list(kept.values())


def _check(sources: IntArray, targets: IntArray, num_sources: int, num_targets: int) -> None:
    assert sources.size == targets.size
    for blocks, count in ((sources, num_sources), (targets, num_targets)):
        assert not blocks.size or 0 <= blocks.min() <= blocks.max() < count, "no such block"
    assert np.unique(targets).size == targets.size, "two blocks are copied to the same one"
