"""From a worker's configuration to a model that is ready to run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import torch

from taco_kernels.cpu.library import CpuKernels
from taco_proto.config import ModelConfig as WantedModel
from taco_proto.config import WorkerConfig
from taco_worker.models.checkpoint import LoadFormat
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.dtypes import dtype_name, resolve_dtype, resolve_kv_dtype
from taco_worker.models.hub import resolve_model
from taco_worker.models.loader import load_model, load_weights
from taco_worker.models.step_model import StepModel
from taco_worker.models.torch_model import TorchModel

_CPU = torch.device("cpu")
_QUANTIZATIONS = (None, "int8")


def load_step_model(
    config: WorkerConfig, kernels: CpuKernels | None
) -> tuple[ModelConfig, StepModel]:
    """Load the model that `config` names, for the CPU kernels or for torch without them.

    Raises:
        ValueError: the model cannot be found, read or run as the configuration says.
    """
    wanted = config.model
    load_format = _load_format(wanted)
    if wanted.quantization not in _QUANTIZATIONS:
        raise ValueError(f"unknown quantization {wanted.quantization!r}; known: int8")
    model_dir = resolve_model(
        wanted.model,
        revision=wanted.revision,
        download_dir=None if wanted.download_dir is None else Path(wanted.download_dir),
    )
    model = load_hf_config(
        model_dir, rope_scaling=wanted.rope_scaling, rope_theta=wanted.rope_theta
    )
    dtype = resolve_dtype(wanted.dtype, model.checkpoint_dtype, _CPU)
    kv_dtype = resolve_kv_dtype(config.kv_cache_dtype, dtype)
    if kernels is None:
        _check_torch_suffices(wanted.quantization, dtype, kv_dtype)
        decoder = load_model(
            model_dir, model, dtype=dtype, device=_CPU, load_format=load_format, seed=wanted.seed
        )
        return model, TorchModel(decoder)

    from taco_worker.models.cpu_decoder import FusedDecoder
    from taco_worker.models.cpu_weights import CpuWeights

    weights = CpuWeights(model.decoder, kernels, dtype=dtype, quantization=wanted.quantization)
    load_weights(weights, model_dir, model, load_format=load_format, seed=wanted.seed)
    return model, FusedDecoder(model.decoder, kernels, weights, kv_dtype=kv_dtype)


def _load_format(wanted: WantedModel) -> LoadFormat:
    match wanted.load_format:
        case "auto" | "safetensors" | "pt" | "dummy" as load_format:
            return load_format
        case unknown:
            known = ", ".join(get_args(LoadFormat))
            raise ValueError(f"unknown load format {unknown!r}; known: {known}")


def _check_torch_suffices(
    quantization: str | None, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    if quantization is not None:
        raise ValueError(f"quantization {quantization} needs the CPU kernels")
    if kv_dtype != dtype:
        raise ValueError(f"a KV cache of {dtype_name(kv_dtype)} needs the CPU kernels")
