"""Starting the CPU kernels, and the errors and warnings if they cannot start."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import make_checkpoint
from support.plans import Join, make_plan
from taco_kernels.instruction_sets import choose_instruction_set
from taco_kernels.library import CpuKernels, load, load_library
from taco_kernels.native.cores import Cores
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker.backends.cpu.kernel_startup import start_cpu_kernels
from taco_worker.worker import Worker

TWO_CORES = Cores(cpus=(0, 1), quota=None)


def on_any_cpus(num_threads: int, cpus: Sequence[int] | None) -> CpuKernels:
    assert cpus == (TWO_CORES.cpus if num_threads == 2 else None)
    return load(num_threads)


def on_an_old_cpu(num_threads: int, cpus: Sequence[int] | None) -> CpuKernels:
    return load(
        num_threads, cpus, isa=choose_instruction_set({"avx2": "avx2", "amx": "avx2, amx_tile"})
    )


def without_library(num_threads: int, cpus: Sequence[int] | None) -> CpuKernels:
    load_library(Path("/nowhere/libtaco_kernels.so"))
    raise AssertionError("that library exists")


def test_number_of_threads_is_the_flag_or_the_number_of_cores() -> None:
    for wanted, given in ((1, 1), (2, 2), (None, 2)):
        kernels = start_cpu_kernels(wanted, cores=TWO_CORES, load_kernels=on_any_cpus)
        assert kernels is not None
        assert kernels.num_threads == given


def test_more_threads_than_cores_are_rejected() -> None:
    with pytest.raises(ValueError, match="3 threads: this process may use 1 to 2 cores"):
        start_cpu_kernels(3, cores=TWO_CORES)


def test_a_cpu_without_avx2_is_rejected() -> None:
    with pytest.raises(ValueError, match="the CPU kernels need AVX2: this machine lacks avx2"):
        start_cpu_kernels(1, cores=TWO_CORES, load_kernels=on_an_old_cpu)


def test_without_a_library_torch_serves_after_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ModelConfig(model=str(make_checkpoint(tmp_path)))
    config = WorkerConfig(model=model, num_blocks=8, max_num_seqs=2, num_threads=1)

    def start(num_threads: int | None) -> CpuKernels | None:
        return start_cpu_kernels(num_threads, cores=TWO_CORES, load_kernels=without_library)

    with caplog.at_level(logging.INFO, "taco.worker"):
        worker = Worker(config, start)
    warning, line = (record.getMessage() for record in caplog.records)
    assert "torch serves" in warning
    assert "there is no libtaco_kernels.so" in warning
    assert "torch, 1 thread" in line
    output = worker.execute(make_plan({0: 3}, joined=[Join(0, [4, 5, 6], [1])]))
    assert output.error == ""


@pytest.mark.parametrize(
    ("model_changes", "changes", "message"),
    [
        ({"quantize_lm_head": True}, {}, "quantize_lm_head needs the CPU kernels"),
        ({"quantized_activations": "int8"}, {}, "quantized_activations int8 needs the CPU kernels"),
        ({}, {"kv_cache_dtype": "bfloat16"}, "a KV cache of bfloat16 needs the CPU kernels"),
    ],
)
def test_options_that_torch_lacks_fail_with_one_line(
    tmp_path: Path, model_changes: dict[str, Any], changes: dict[str, str], message: str
) -> None:
    model = ModelConfig(model=str(make_checkpoint(tmp_path)), **model_changes)
    config = WorkerConfig(model=model, num_blocks=8, **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=message):
        Worker(config, lambda _: None)
