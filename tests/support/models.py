"""Models as a worker loads them, by torch or by the CPU kernels of any instruction set."""

from pathlib import Path

import torch

from support.cpu_kernels import NATIVE, kernels_of
from taco_kernels.library import CpuKernels
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.attention.backend import create_attention_backend
from taco_worker.backends import model_loading
from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.torch_ops import TorchOps
from taco_worker.models.plan.model_plan import ModelPlan
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
    quantized_activations: str = "auto",
    quantize_lm_head: bool = False,
    kv_cache_dtype: str = "auto",
    quantization_param_path: str | None = None,
    load_format: str = "auto",
    num_threads: int = 2,
) -> StepModel:
    model = ModelConfig(
        model=str(path),
        dtype=dtype,
        quantization=quantization,
        quantized_activations=quantized_activations,
        quantize_lm_head=quantize_lm_head,
        load_format=load_format,
    )
    config = WorkerConfig(
        model=model,
        kv_cache_dtype=kv_cache_dtype,
        quantization_param_path=quantization_param_path,
    )
    transfers = Transfers(torch.device("cpu"))
    return model_loading.load_step_model(config, kernels_for(serves, num_threads), transfers)[1]


def make_network(plan: ModelPlan, dtype: torch.dtype = torch.float32) -> PlanNetwork:
    """The torch network on the CPU, its weights not yet loaded."""
    cpu = torch.device("cpu")
    return PlanNetwork(plan, create_attention_backend("torch"), TorchOps(), dtype=dtype, device=cpu)
