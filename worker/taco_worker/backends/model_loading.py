"""Loads the model that a worker's configuration names, on the CPU kernels or on torch."""

from __future__ import annotations

from pathlib import Path

from taco_kernels.library import CpuKernels
from taco_proto.config import WorkerConfig
from taco_worker.devices.transfers import Transfers
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.dtypes import resolve_dtype, resolve_kv_dtype
from taco_worker.models.hub import resolve_model
from taco_worker.models.load_format import load_format_of
from taco_worker.models.step_model import StepModel
from taco_worker.models.weight_loading import load_weights

_QUANTIZATIONS = (None, "int8")


def load_step_model(
    config: WorkerConfig, kernels: CpuKernels | None, transfers: Transfers
) -> tuple[ModelConfig, StepModel]:
    """Load the model that `config` names: on `kernels`, or on torch without them.

    Raises:
        ValueError: the model cannot be found, read or run with this configuration.
    """
    wanted = config.model
    load_format = load_format_of(wanted)
    if wanted.quantization not in _QUANTIZATIONS:
        raise ValueError(f"unknown quantization {wanted.quantization!r}; known: int8")
    model_dir = resolve_model(
        wanted.model,
        revision=wanted.revision,
        download_dir=None if wanted.download_dir is None else Path(wanted.download_dir),
        ignore_patterns=wanted.ignore_patterns,
        is_mistral=load_format == "mistral",
    )
    model = load_hf_config(
        model_dir,
        rope_scaling=wanted.rope_scaling,
        rope_theta=wanted.rope_theta,
        config_format=wanted.config_format,
        hf_overrides=wanted.hf_overrides,
        disable_sliding_window=wanted.disable_sliding_window,
    )
    dtype = resolve_dtype(wanted.dtype, model.checkpoint_dtype, transfers.device)
    kv_dtype = resolve_kv_dtype(config.kv_cache_dtype, dtype, transfers.device)
    # Each back end is imported only where it runs.
    if kernels is None:
        from taco_worker.backends.torch.torch_loading import load_torch_model

        if wanted.quantization is not None:
            raise ValueError(f"quantization {wanted.quantization} needs the CPU kernels")
        return model, load_torch_model(
            config,
            model_dir,
            model,
            transfers,
            dtype=dtype,
            kv_dtype=kv_dtype,
            load_format=load_format,
        )
    if config.attention_backend is not None:
        raise ValueError(
            f"attention_backend {config.attention_backend!r} is not supported on a CPU: its "
            "kernels compute whole layers"
        )

    from taco_worker.backends.cpu.cpu_model import CpuModel
    from taco_worker.backends.cpu.cpu_weights import CpuWeights

    weights = CpuWeights(model.plan, kernels, dtype=dtype, quantization=wanted.quantization)
    load_weights(weights, model_dir, model, load_format=load_format, seed=wanted.seed)
    return model, CpuModel(model.plan, kernels, weights, kv_dtype=kv_dtype)
