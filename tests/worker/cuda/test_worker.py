"""The worker on a GPU: streams, CUDA graphs, memory."""

from __future__ import annotations

import queue
from pathlib import Path

import numpy as np
import pytest
import torch

from support.checkpoints import make_checkpoint
from support.eagle_reference import CONFIGS, NUM_TARGET_LAYERS, eagle_shapes
from support.heads import random_tensors, write_heads
from support.plans import Join, make_plan
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput, StepPlan
from taco_worker.backends.torch.cuda_graphs import GraphShape
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.devices.transfers import Transfers
from taco_worker.models.step_model import ModelInput
from taco_worker.worker import Worker

PROMPT, OTHER = [5, 17, 300, 42, 9, 77, 130, 6, 250, 31, 8], [250, 3, 3, 99]
RANDOM = SamplingParams(temperature=0.9, top_p=0.9, top_k=20, seed=5, logprobs=2)
NUM_DECODES = 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), num_hidden_layers=4)


def make_worker(path: Path, **changes: object) -> Worker:
    values: dict[str, object] = {"device": "cuda", "num_blocks": 64, "max_num_seqs": 4, **changes}
    model = ModelConfig(model=str(path), dtype="float32")
    return Worker(WorkerConfig(model=model, **values))  # type: ignore[arg-type]


def plans() -> list[StepPlan]:
    return [
        make_plan({2: 5}, joined=[Join(2, PROMPT, [3, 11])], epoch=1),
        make_plan({1: 4, 2: 6}, joined=[Join(1, OTHER, [0, 7], sampling=RANDOM)], epoch=1),
        *(make_plan({1: 1, 2: 1}, epoch=1) for _ in range(NUM_DECODES)),
    ]


def run_ahead(worker: Worker) -> list[list[int]]:
    """Launch each step before the one before it is done; return the tokens of all steps."""
    worker.reset()
    outputs: queue.SimpleQueue[StepOutput] = queue.SimpleQueue()
    for plan in plans():
        worker.submit(plan, outputs.put)
    worker.drain()
    found = [outputs.get() for _ in plans()]
    assert [output.error for output in found] == [""] * len(found)
    return [output.token_ids.tolist() for output in found]


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    """The reference tokens: torch's operations on the CPU."""
    model = ModelConfig(model=str(checkpoint), dtype="float32")
    config = WorkerConfig(model=model, device="cpu", num_blocks=64, max_num_seqs=4)
    worker = Worker(config, lambda _: None)
    return [worker.execute(plan).token_ids.tolist() for plan in plans()]


def test_uploads_keep_their_content_while_the_device_is_busy() -> None:
    transfers = Transfers(torch.device("cuda", 0))
    busy = torch.randn(4096, 4096, device="cuda")
    rng = np.random.default_rng(0)
    downloads = []
    for _ in range(50):
        column = rng.integers(0, 2**31, 1000, dtype=np.int32)
        busy = busy @ busy.T / 4096
        (there,) = transfers.upload(column)
        downloads.append((column, transfers.download(there + 0)))
    for column, download in downloads:
        assert np.array_equal(download.wait()[0].numpy(), column)


@pytest.mark.parametrize("eager", [True, False])
def test_overlapping_steps_return_the_reference_tokens(
    checkpoint: Path, expected: list[list[int]], eager: bool
) -> None:
    worker = make_worker(checkpoint, enforce_eager=eager)
    assert run_ahead(worker) == expected
    while worker.tune():
        pass
    assert run_ahead(worker) == expected
    assert isinstance(worker._model, TorchModel)
    graphs = worker._model._graphs
    assert (graphs is None) == eager
    assert graphs is None or GraphShape(1, 2) in graphs._graphs


def test_memory_bytes_by_use(checkpoint: Path) -> None:
    worker = make_worker(checkpoint)
    run_ahead(worker)
    sizes = worker.memory_bytes()
    own = sizes["weights"] + sizes["kv_cache"]
    assert 0 < own <= sizes["device_allocated"] <= sizes["device_reserved"]
    assert sizes["device_reserved"] < sizes["device_total"]
    assert sum(worker.step_metrics.seconds.counts) == len(plans())


def test_offloaded_layers_in_graphs(checkpoint: Path, expected: list[list[int]]) -> None:
    worker = make_worker(checkpoint, cpu_offload_gb=0.0006)
    while worker.tune():
        pass
    assert run_ahead(worker) == expected


def test_the_worker_serves_after_a_failed_capture(
    checkpoint: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(checkpoint)
    decoder = worker._model.network  # type: ignore[attr-defined]
    forward = decoder.forward

    def waits(*arguments: object) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()  # fails in a capture
        result: torch.Tensor = forward(*arguments)
        return result

    monkeypatch.setattr(decoder, "forward", waits)
    worker.tune()
    assert not worker.tune()
    assert run_ahead(worker) == expected


def test_the_kv_cache_takes_the_rest_of_the_utilization(checkpoint: Path) -> None:
    free, total = torch.cuda.mem_get_info()
    used = (total - free) / total
    worker = make_worker(checkpoint, num_blocks=None, gpu_memory_utilization=used + 0.1)
    cache_bytes = worker.info.num_blocks * worker._model.kv_block_bytes(worker.info.block_size)
    assert 0 < cache_bytes < 0.1 * total
    free, total = torch.cuda.mem_get_info()
    assert (total - free) / total < used + 0.11


def test_the_utilization_includes_draft_heads(tmp_path: Path) -> None:
    target = make_checkpoint(tmp_path / "target", num_hidden_layers=NUM_TARGET_LAYERS)
    tensors = random_tensors(eagle_shapes("eagle"))
    heads = write_heads(tmp_path / "heads", CONFIGS["eagle"], tensors, "model.safetensors")
    free, total = torch.cuda.mem_get_info()
    used = (total - free) / total
    worker = make_worker(
        target,
        num_blocks=None,
        gpu_memory_utilization=used + 0.1,
        speculation=SpeculationConfig(heads=str(heads)),
    )
    free, total = torch.cuda.mem_get_info()
    assert (total - free) / total < used + 0.11
    run_ahead(worker)
    assert (total - torch.cuda.mem_get_info()[0]) / total < used + 0.11


def test_a_step_that_runs_out_of_memory_is_split(
    checkpoint: Path,
    expected: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = make_worker(checkpoint, enforce_eager=True)
    forward = worker._model.forward

    def needs_much(inputs: ModelInput) -> torch.Tensor:
        if inputs.positions.size > 3:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        return forward(inputs)

    monkeypatch.setattr(worker._model, "forward", needs_much)
    assert run_ahead(worker) == expected
    assert "retrying it as smaller steps" in caplog.text
