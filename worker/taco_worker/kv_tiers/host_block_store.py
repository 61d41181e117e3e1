"""The host tier on the worker: KV blocks in host memory, and copies from and to the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from taco_kernels.kv_entry import KVEntry
from taco_proto.steps import BlockCopies, IntArray
from taco_worker.batch.plan_error import PlanError
from taco_worker.devices.copy_stream import CopyEvent, CopyStream, EntryCopies
from taco_worker.kv_tiers.block_copies import CopyPart, PrepareCopies, copy_each


class HostBlockStore:
    """Host blocks; each holds one device block's KV of all layers.

    On a GPU the copies overlap with the computation, a few entries at a time: the first layer runs
    while the last layers' KV is still being copied. On a CPU `copy` blocks until it is done. One
    thread copies at the full bandwidth of a core; computing a block's tokens takes hundreds of
    times as long.

    Attributes:
        rows: uint8 [num_blocks, bytes of a block]; pinned if a copy stream needs it.
    """

    def __init__(
        self,
        rows: Tensor,
        device_rows: Tensor,
        *,
        num_parts: int,
        copy_stream: CopyStream | None = None,
        is_lazy: bool = True,
        prepare_copies: PrepareCopies = copy_each,
    ) -> None:
        """
        Args:
            device_rows: uint8 [number of device blocks, bytes of a block], entry after entry.
            num_parts: equal parts of a block; see `count_parts`.
            copy_stream: the stream of the copies; None: `copy` makes them at once.
            is_lazy: copy part by part, not a whole block in one copy.
            prepare_copies: the copy implementation; see block_copies.
        """
        self.rows = rows
        self._device_rows = device_rows
        self._copy_stream = copy_stream
        self._groups = part_groups(num_parts) if is_lazy else [range(num_parts)]
        self._part_bytes = rows.shape[1] // num_parts
        self._prepare_moves = prepare_copies

    @property
    def num_blocks(self) -> int:
        return self.rows.shape[0]

    def check(self, copies: BlockCopies) -> None:
        """Raises:
        PlanError: a block does not exist, or two copies write to the same block.
        """
        num_device, num_host = self._device_rows.shape[0], self.num_blocks
        sides = (
            ("offloaded", copies.offload_sources, num_device, copies.offload_targets, num_host),
            ("loaded", copies.load_sources, num_host, copies.load_targets, num_device),
        )
        for what, sources, num_sources, targets, num_targets in sides:
            if sources.size != targets.size:
                raise PlanError(f"{sources.size} blocks are {what} to {targets.size}")
            _check_range(sources, num_sources, what)
            _check_range(targets, num_targets, what)
            if np.unique(targets).size != targets.size:
                raise PlanError(f"two blocks are {what} to the same one")

    def copy(self, copies: BlockCopies) -> EntryCopies:
        """Start a step's copies, which `check` has accepted. In each part all offloads precede all
        loads.

        Returns:
            The events that the step's computation must wait for.
        """
        copy_part = self._prepare_moves(copies)
        if self._copy_stream is None:
            copy_part(self._device_rows, self.rows)
            return EntryCopies([])
        self._copy_stream.wait_for_compute()
        return EntryCopies(
            [
                (parts.start, self._put(self._copy_stream, copy_part, parts))
                for parts in self._groups
            ]
        )

    def _put(self, copy_stream: CopyStream, copy_part: CopyPart, parts: range) -> CopyEvent:
        part = slice(parts.start * self._part_bytes, parts.stop * self._part_bytes)
        return copy_stream.put(lambda: copy_part(self._device_rows[:, part], self.rows[:, part]))


def count_parts(entries: Sequence[KVEntry]) -> int:
    """Equal parts of a block such that part i is entry i; 1, the whole block, if sizes differ."""
    return len(entries) if len(set(entries)) == 1 else 1


def part_groups(num_parts: int) -> list[range]:
    """Parts that are copied together: 1, 1, 2, 4 and so on.

    The first layer waits for little, and each group is copied while as many layers compute. Few
    copies remain; each costs the host some microseconds.
    """
    groups, start = [], 0
    while start < num_parts:
        stop = min(max(2 * start, 1), num_parts)
        groups.append(range(start, stop))
        start = stop
    return groups


def _check_range(blocks: IntArray, num_blocks: int, what: str) -> None:
    if blocks.size and (blocks.min() < 0 or blocks.max() >= num_blocks):
        raise PlanError(f"a block id to be {what} is out of range: there are {num_blocks} blocks")
