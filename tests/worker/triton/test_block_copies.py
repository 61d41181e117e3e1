"""The block copy kernel, some layers at a time, against single copies."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch

from support.plans import ints
from taco_kernels.triton.block_copy import copy_blocks
from taco_proto.steps import BlockCopies
from taco_worker.devices.transfers import Array, Transfers
from taco_worker.kv_tiers.block_copies import (
    PrepareCopies,
    choose_block_copier,
    copy_by_kernel,
    copy_each,
)
from taco_worker.kv_tiers.host_block_store import HostBlockStore

NUM_LAYERS, LAYER_BYTES = 5, 48
COPIES = BlockCopies(
    offload_sources=ints([2, 0, 5]),
    offload_targets=ints([1, 3, 0]),
    load_sources=ints([1, 4]),
    load_targets=ints([2, 4]),
)


class CountingTransfers(Transfers):
    """Counts uploads."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.num_uploads = 0

    def upload(self, *columns: Array) -> list[torch.Tensor]:
        self.num_uploads += 1
        return super().upload(*columns)


class ImmediateCopyStream:
    """Runs work at once."""

    def wait_for_compute(self) -> None:
        return

    def put(self, work: Callable[[], None]) -> ImmediateCopyStream:
        work()
        return self

    def wait(self) -> None:
        return


def moved(prepare_copies: PrepareCopies) -> tuple[torch.Tensor, torch.Tensor]:
    """Both memories after the copies of each group of layers."""
    torch.manual_seed(0)
    shape = (6, NUM_LAYERS * LAYER_BYTES)
    device, host = (torch.randint(0, 256, shape, dtype=torch.uint8) for _ in range(2))
    tier = HostBlockStore(
        host,
        device,
        num_parts=NUM_LAYERS,
        copy_stream=ImmediateCopyStream(),
        prepare_copies=prepare_copies,
    )
    tier.copy(COPIES).wait()
    return device, host


def test_the_kernel_matches_single_copies() -> None:
    transfers = CountingTransfers()
    for ours, expected in zip(moved(copy_by_kernel(transfers)), moved(copy_each), strict=True):
        assert torch.equal(ours, expected)
    assert transfers.num_uploads == 1  # for all groups of layers


def test_the_number_of_launches_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[int] = []

    def count(*arguments: torch.Tensor) -> None:
        launches.append(arguments[2].numel())
        copy_blocks(*arguments)

    monkeypatch.setattr(sys.modules["taco_kernels.triton.block_copy"], "copy_blocks", count)
    moved(copy_by_kernel(CountingTransfers()))
    assert launches == [3, 2] * 4  # offloads and loads of the 4 groups of 5 layers


def test_the_kernel_is_for_gpus_and_whole_vectors() -> None:
    class Gpu(Transfers):
        def __init__(self) -> None:
            self.overlaps = True

    assert choose_block_copier(Transfers(torch.device("cpu")), 64) is copy_each
    assert choose_block_copier(Gpu(), 24) is copy_each
    assert choose_block_copier(Gpu(), 48) is not copy_each
