"""Copies beside the computation: a layer's KV is used only after its copies are done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.models import load_step_model
from support.plans import ints
from taco_kernels.kv_entry import KVEntry
from taco_proto.steps import BlockCopies
from taco_worker.backends.torch.cuda_graphs import CudaGraphs
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.devices.copy_stream import CopyEvent
from taco_worker.devices.transfers import Transfers
from taco_worker.kv_tiers.host_block_store import HostBlockStore, count_parts, part_groups
from taco_worker.models.step_model import ModelInput

NUM_LAYERS = 5
PROMPT = list(range(30, 50))
LOAD = BlockCopies(load_sources=ints([4]), load_targets=ints([2]))


class LateCopyStream:
    """Copies only when an event is waited for, as a device with slow copies."""

    def __init__(self) -> None:
        self.num_put = 0
        self.waiting: list[Callable[[], None]] = []

    def wait_for_compute(self) -> None:
        return

    def put(self, work: Callable[[], None]) -> CopyEvent:
        self.num_put += 1
        self.waiting.append(work)
        return _LateArrival(self, self.num_put)


class _LateArrival:
    def __init__(self, copy_stream: LateCopyStream, number: int) -> None:
        self._copy_stream = copy_stream
        self._number = number

    def wait(self) -> None:
        copy_stream = self._copy_stream
        while copy_stream.num_put - len(copy_stream.waiting) < self._number:
            copy_stream.waiting.pop(0)()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("llama"), num_hidden_layers=NUM_LAYERS)
    model = load_step_model(checkpoint, "torch")
    assert isinstance(model, TorchModel)
    model.allocate_kv(8, 16, 64)
    return model


def step(num_computed: int, blocks: list[int], num_tokens: int = len(PROMPT)) -> ModelInput:
    """The input of one sequence, from `num_computed` on."""
    new = PROMPT[num_computed:num_tokens]
    return ModelInput(
        token_ids=torch.tensor(new, dtype=torch.int32),
        positions=ints(range(num_computed, num_tokens)),
        query_start=ints([0, len(new)]),
        seq_lens=ints([num_tokens]),
        block_tables=ints(blocks)[None],
        output_rows=ints([len(new) - 1]),
    )


def expected_logits(model: TorchModel) -> Tensor:
    """The logits of the last 4 tokens with a prefix whose KV stayed on the device.

    It runs the same number of rows as the tested steps: torch's products of different numbers of
    rows are bit-identical on some CPUs only.
    """
    model.forward(step(0, [3, 5]))
    return model.forward(step(16, [3, 5]))


def make_tier(
    model: TorchModel, copy_stream: LateCopyStream, *, is_lazy: bool = True
) -> HostBlockStore:
    """Host block 4 holds the prompt's first block, which no device block holds."""
    tier = HostBlockStore(
        torch.zeros_like(model.kv_rows),
        model.kv_rows,
        num_parts=NUM_LAYERS,
        copy_stream=copy_stream,
        is_lazy=is_lazy,
    )
    model.forward(step(0, [3, 5]))
    tier.rows[4] = model.kv_rows[3]
    model.kv_rows[:5].zero_()
    return tier


@torch.inference_mode()
def test_each_layer_waits_for_its_own_kv(
    model: TorchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_stream = LateCopyStream()
    expected = expected_logits(model)
    tier = make_tier(model, copy_stream)
    num_waiting: list[int] = []

    def note(_: object, args: object) -> None:
        num_waiting.append(len(copy_stream.waiting))

    hooks = [layer.register_forward_pre_hook(note) for layer in model.network.layers]
    model.set_pending_copies(tier.copy(LOAD))
    assert torch.equal(model.forward(step(16, [2, 6])), expected)
    for hook in hooks:
        hook.remove()
    # Groups of 1, 1, 2 and 1 layers: no group is copied when the first layer begins.
    assert num_waiting == [4, 3, 2, 1, 1]
    assert not copy_stream.waiting


@torch.inference_mode()
def test_without_lazy_loads_the_first_layer_waits_for_all(model: TorchModel) -> None:
    copy_stream = LateCopyStream()
    expected = expected_logits(model)
    tier = make_tier(model, copy_stream, is_lazy=False)
    model.set_pending_copies(tier.copy(LOAD))
    assert copy_stream.num_put == 1
    assert torch.equal(model.forward(step(16, [2, 6])), expected)


@torch.inference_mode()
def test_a_graph_replay_waits_for_all_copies(
    model: TorchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph was captured without the copies, so it cannot wait by itself. (Its results are
    meaningless here: on a CPU attention reads host lengths, which a graph does not have.)"""
    copy_stream = LateCopyStream()
    replays: list[int] = []

    def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def replay() -> Tensor:
            replays.append(len(copy_stream.waiting))
            return run()

        return replay

    graphs = CudaGraphs(Transfers(torch.device("cpu")), max_num_seqs=1, capture=capture)
    graphs.prepare(model._run, block_size=16, max_model_len=64)
    while graphs.capture_next():
        pass
    tier = make_tier(model, copy_stream)
    monkeypatch.setattr(model, "_graphs", graphs)
    model.set_pending_copies(tier.copy(LOAD))
    model.forward(step(16, [2, 6], num_tokens=17))
    assert replays == [0]


@torch.inference_mode()
def test_each_layer_offloads_before_it_loads(model: TorchModel) -> None:
    copy_stream = LateCopyStream()
    tier = make_tier(model, copy_stream)
    model.kv_rows[2].fill_(7)
    pending_copies = tier.copy(
        BlockCopies(
            offload_sources=ints([2]),
            offload_targets=ints([1]),
            load_sources=ints([4, 1]),
            load_targets=ints([2, 0]),
        )
    )
    layer_bytes = tier.rows.shape[1] // NUM_LAYERS
    pending_copies.wait_for(1)
    assert (tier.rows[1] == 7).sum() == 2 * layer_bytes
    pending_copies.wait()
    assert (tier.rows[1] == 7).all()
    assert torch.equal(model.kv_rows[2], tier.rows[4])
    assert (model.kv_rows[0] == 7).all()


def test_groups_grow_and_hold_every_part_once() -> None:
    assert [list(parts) for parts in part_groups(5)] == [[0], [1], [2, 3], [4]]
    assert [len(parts) for parts in part_groups(32)] == [1, 1, 2, 4, 8, 16]
    assert [list(parts) for parts in part_groups(1)] == [[0]]


def test_a_part_is_an_entry_only_if_all_have_one_size() -> None:
    large, small = KVEntry(2, 16, 16), KVEntry(1, 16, 16)
    assert count_parts([large] * 3) == 3
    assert count_parts([large, small, large]) == 1
