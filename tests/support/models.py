"""Models as a worker loads them, by torch or by the CPU kernels of any instruction set."""

from pathlib import Path

from support.cpu_kernels import NATIVE, kernels_of
from taco_kernels.cpu.library import CpuKernels
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker import load
from taco_worker.models.step_model import StepModel


def kernels_for(serves: str, num_threads: int = 2) -> CpuKernels | None:
    """ "torch", "kernels" (the best instruction set that this machine has), or a set's name."""
    if serves == "torch":
        return None
    return kernels_of(NATIVE[-1] if serves == "kernels" else serves, num_threads)


def load_step_model(
    path: Path,
    serves: str,
    *,
    dtype: str = "float32",
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    load_format: str = "auto",
    num_threads: int = 2,
) -> StepModel:
    model = ModelConfig(
        model=str(path), dtype=dtype, quantization=quantization, load_format=load_format
    )
    config = WorkerConfig(model=model, kv_cache_dtype=kv_cache_dtype)
    return load.load_step_model(config, kernels_for(serves, num_threads))[1]
