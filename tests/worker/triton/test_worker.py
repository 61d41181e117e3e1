"""The worker as on a GPU, but on the CPU: Triton's kernels in the interpreter, and steps replayed
with fixed inputs, as CUDA graphs are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.plans import GREEDY, Join, make_plan
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput, StepPlan
from taco_worker.attention.backend import create_attention_backend
from taco_worker.backends.torch import torch_loading
from taco_worker.backends.torch.cuda_graphs import CudaGraphs, GraphShape, graph_sizes
from taco_worker.backends.torch.torch_loading import TorchBackend
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.triton_ops import TritonOps
from taco_worker.memory.profiling_steps import largest_step, run_with_all_options
from taco_worker.sampling.triton_ops import TritonSampling
from taco_worker.worker import Worker

PROMPT, OTHER = [5, 17, 300, 42, 9, 77, 130, 6, 250, 31, 8], [250, 3, 3, 99]
BLOCKS, OTHER_BLOCKS = [3, 11, 40], [0, 7]
MAX_NUM_SEQS = 3
RANDOM = SamplingParams(temperature=0.9, top_p=0.9, top_k=20, seed=5, logprobs=2)


def replay(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A fake graph: the same call on the same tensors."""
    run()
    return run


def make_worker(path: Path) -> Worker:
    model = ModelConfig(model=str(path), dtype="float32")
    config = WorkerConfig(
        model=model, num_blocks=64, block_size=8, max_num_seqs=MAX_NUM_SEQS, num_threads=1
    )
    return Worker(config, lambda _: None)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Worker, Worker]:
    """One worker on torch's operations, one on Triton's kernels."""
    return make_workers(tmp_path_factory.mktemp("llama"), "LlamaForCausalLM")


def make_workers(folder: Path, architecture: str) -> tuple[Worker, Worker]:
    path = make_checkpoint(folder, architecture)
    on_torch = make_worker(path)

    def choose_torch_backend(
        config: WorkerConfig, transfers: Transfers, dtype: torch.dtype
    ) -> TorchBackend:
        graphs = CudaGraphs(transfers, max_num_seqs=config.max_num_seqs, capture=replay)
        backend = create_attention_backend("triton")
        return TorchBackend(backend, TritonOps(), TritonSampling(transfers), graphs, "triton")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_loading, "choose_torch_backend", choose_torch_backend)
        return on_torch, make_worker(path)


def plans() -> list[StepPlan]:
    """Chunks, mixed steps, decodes of one and of two sequences, one of them random."""
    return [
        make_plan({2: 5}, joined=[Join(2, PROMPT, BLOCKS)]),
        make_plan({1: 4, 2: 6}, joined=[Join(1, OTHER, OTHER_BLOCKS, sampling=RANDOM)]),
        *(make_plan({1: 1, 2: 1}) for _ in range(2)),
        make_plan({2: 1}, left=[1]),
    ]


def check_equal(actual: StepOutput, expected: StepOutput) -> None:
    assert actual.error == expected.error == ""
    assert actual.slots.tolist() == expected.slots.tolist()
    assert actual.token_ids.tolist() == expected.token_ids.tolist()
    if expected.logprobs is None:
        assert actual.logprobs is None
        return
    assert actual.logprobs is not None
    assert np.array_equal(actual.logprobs.token_ids, expected.logprobs.token_ids)
    assert np.array_equal(actual.logprobs.ranks, expected.logprobs.ranks)
    assert actual.logprobs.logprobs == pytest.approx(expected.logprobs.logprobs, abs=1e-4)


def run_both(workers: tuple[Worker, Worker]) -> None:
    on_torch, on_triton = workers
    for worker in workers:
        worker.reset()
    for plan in plans():
        check_equal(on_triton.execute(plan), on_torch.execute(plan))


def test_tokens_match_torch(workers: tuple[Worker, Worker]) -> None:
    run_both(workers)


def test_learned_positions_and_layer_norms_too(tmp_path: Path) -> None:
    run_both(make_workers(tmp_path, "OPTForCausalLM"))


def test_replayed_steps_match_eager_ones(workers: tuple[Worker, Worker]) -> None:
    _, on_triton = workers
    while on_triton.tune():
        pass
    assert graphs_of(on_triton) == {GraphShape(1, size) for size in graph_sizes(MAX_NUM_SEQS)}
    run_both(workers)


def test_a_repeated_step_is_captured_between_steps(workers: tuple[Worker, Worker]) -> None:
    _, worker = workers
    model = worker._model
    assert isinstance(model, TorchModel)
    model.allocate_kv(64, 8, 64)  # releases all graphs
    worker.reset()
    worker.execute(make_plan({0: 4}, joined=[Join(0, OTHER, OTHER_BLOCKS, sampling=GREEDY)]))
    assert not worker.tune(between_steps=True)
    worker.execute(make_plan({0: 1}))
    assert not worker.tune(between_steps=True)  # one occurrence is not enough
    worker.execute(make_plan({0: 1}))
    assert worker.tune(between_steps=True)
    assert not worker.tune(between_steps=True)
    assert GraphShape(1, 1) in graphs_of(worker)


def graphs_of(worker: Worker) -> set[GraphShape]:
    assert isinstance(worker._model, TorchModel)
    assert worker._model._graphs is not None
    return set(worker._model._graphs._graphs)


def test_the_profiling_step_uses_every_option(workers: tuple[Worker, Worker]) -> None:
    """The step that is run to profile a GPU's memory."""
    for worker in workers:
        transfers = Transfers(torch.device("cpu"))
        step = largest_step(transfers, max_num_seqs=3, num_tokens=7, max_model_len=32)
        tokens = torch.zeros((3, 32), dtype=torch.int32)
        with torch.inference_mode():
            run_with_all_options(worker._model, step, tokens, max_logprobs=4)


def test_sizes_of_graphs() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(4) == [1, 2, 4]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes(256)[-3:] == [240, 248, 256]
