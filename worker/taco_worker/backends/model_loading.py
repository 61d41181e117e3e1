"""Loads the model that a worker's configuration names, on the CPU kernels or on torch."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from taco_kernels.library import CpuKernels
from taco_proto.config import ModelConfig as WantedModel
from taco_proto.config import WorkerConfig
from taco_worker.devices.transfers import Transfers
from taco_worker.kv_scales.kv_cache_format import choose_kv_format
from taco_worker.models.code_segments import code_segments
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.converted.header import PackedHeader, read_header
from taco_worker.models.dtypes import dtype_name, resolve_dtype
from taco_worker.models.hub import resolve_model
from taco_worker.models.load_format import (
    LOAD_FORMATS_WITHOUT_CODES,
    load_format_of,
    tensorizer_file_of,
)
from taco_worker.models.step_model import StepModel
from taco_worker.models.weight_loading import load_weights
from taco_worker.quant.activations import check_quantized_activations
from taco_worker.quant.registry import stored_as

logger = logging.getLogger("taco.worker")


def load_step_model(
    config: WorkerConfig, kernels: CpuKernels | None, transfers: Transfers
) -> tuple[ModelConfig, StepModel]:
    """Load the model that `config` names: on `kernels`, or on torch without them.

    Raises:
        ValueError: the model cannot be found, read or run with this configuration.
    """
    wanted = config.model
    load_format = load_format_of(wanted)
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
        quantization=wanted.quantization,
        load_format=load_format,
        tensorizer_file=tensorizer_file_of(wanted),
    )
    header: PackedHeader | None = None
    dtype = resolve_dtype(wanted.dtype, model.checkpoint_dtype, transfers.device)
    if load_format == "sharded_state":
        header = read_header(model_dir)
        if kernels is None:
            raise ValueError("load format sharded_state needs the CPU kernels")
        header.check_choices(
            wanted.quantization, wanted.quantized_activations, wanted.quantize_lm_head
        )
        if wanted.dtype == "auto":
            dtype = resolve_dtype(header.dtype, None, transfers.device)
    kv_format = choose_kv_format(config, model, load_format, dtype, transfers.device)
    # Each back end is imported only where it runs.
    if kernels is None:
        from taco_worker.backends.torch.torch_loading import load_torch_model

        if wanted.quantize_lm_head:
            raise ValueError("quantize_lm_head needs the CPU kernels")
        if wanted.quantized_activations == "int8":
            raise ValueError("quantized_activations int8 needs the CPU kernels")
        return model, load_torch_model(
            config,
            model_dir,
            model,
            transfers,
            dtype=dtype,
            kv_format=kv_format,
            load_format=load_format,
        )
    if config.attention_backend is not None:
        raise ValueError(
            f"attention_backend {config.attention_backend!r} is not supported on a CPU: its "
            "kernels compute whole layers"
        )

    from taco_worker.backends.cpu.cpu_model import CpuModel
    from taco_worker.backends.cpu.cpu_weights import CpuWeights

    if header is not None:
        from taco_worker.backends.cpu.packed_weights import map_weights

        weights = CpuWeights(
            model.plan,
            kernels,
            dtype=dtype,
            quantization=stored_as(header.quantization),
            quantizes_lm_head=header.quantize_lm_head,
            codes=header.codes,
            activations=header.quantized_activations,
        )
        map_weights(weights, model.architecture, model_dir, header)
    else:
        _check_codes(wanted, model, dtype)
        weights = CpuWeights(
            model.plan,
            kernels,
            dtype=dtype,
            quantization=stored_as(wanted.quantization),
            quantizes_lm_head=wanted.quantize_lm_head,
            codes=None  # random weights
            if load_format == "dummy"
            else code_segments(model.plan, model.quantization, model.online_quantization),
            activations=wanted.quantized_activations,
        )
        load_weights(
            weights,
            model_dir,
            model,
            load_format=load_format,
            seed=wanted.seed,
            tensorizer_file=tensorizer_file_of(wanted),
        )
    return model, CpuModel(model.plan, kernels, weights, kv_format=kv_format)


def _check_codes(wanted: WantedModel, model: ModelConfig, dtype: torch.dtype) -> None:
    """Check what multiplies the codes of a model on the CPU kernels, if it keeps them.

    Raises:
        ValueError: `quantized_activations` contradicts the model or the other settings.
    """
    if wanted.load_format in LOAD_FORMATS_WITHOUT_CODES:
        return
    check_quantized_activations(
        wanted.quantized_activations,
        wanted.quantization,
        dtype=dtype_name(dtype),
        has_codes=model.has_codes,
    )
    if model.has_codes and dtype != torch.bfloat16:
        logger.warning(
            "the quantized weights are dequantized to %s: with --dtype bfloat16 they keep their "
            "size",
            dtype_name(dtype),
        )
