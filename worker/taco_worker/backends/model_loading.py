"""Loads the model that a worker's configuration names, on the CPU kernels or on torch."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from taco_kernels.library import CpuKernels
from taco_proto.config import ModelConfig as WantedModel
from taco_proto.config import WorkerConfig
from taco_worker.devices.transfers import Transfers
from taco_worker.kv_scales.kv_cache_format import choose_kv_format
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.models.code_segments import code_segments
from taco_worker.models.config import ModelConfig
from taco_worker.models.converted.header import PackedHeader, read_header
from taco_worker.models.dtypes import dtype_name, resolve_dtype
from taco_worker.models.load_format import LOAD_FORMATS_WITHOUT_CODES
from taco_worker.models.lora.factors import read_factors
from taco_worker.models.lora.requested import RequestedAdapters, read_requested
from taco_worker.models.step_model import StepModel
from taco_worker.models.weight_loading import load_weights
from taco_worker.quant.activations import check_quantized_activations
from taco_worker.quant.registry import stored_as

if TYPE_CHECKING:
    from taco_worker.backends.cpu.cpu_weights import CpuWeights
    from taco_worker.backends.cpu.early_weights import EarlyWeights

logger = logging.getLogger("taco.worker")


def load_step_model(
    config: WorkerConfig,
    kernels: CpuKernels | None,
    transfers: Transfers,
    early_weights: EarlyWeights | None = None,
) -> tuple[ModelConfig, StepModel]:
    """Load the model that `config` names: on `kernels`, or on torch without them.

    Args:
        early_weights: matrices that are packed already, if they are for `kernels`.

    Raises:
        ValueError: the model cannot be found, read or run with this configuration.
    """
    model = find_checkpoint(config.model)
    requested = None
    if model.files.lora_modules:
        requested = read_requested(model.plan, model.files.lora_modules)
        model = replace(model, plan=requested.adapted(model.plan))
    # Each back end is imported only where it runs.
    if kernels is None:
        return model, _load_on_torch(config, model, transfers, requested)
    return model, _load_on_kernels(config, model, transfers, kernels, early_weights, requested)


def _load_on_torch(
    config: WorkerConfig,
    model: ModelConfig,
    transfers: Transfers,
    requested: RequestedAdapters | None,
) -> StepModel:
    from taco_worker.backends.torch.torch_loading import load_torch_model

    wanted = config.model
    if model.files.load_format == "sharded_state":
        raise ValueError(
            f"the weights in {model.files.directory} are converted for the CPU kernels, which do "
            "not run here: serve the model that they were converted from"
        )
    if wanted.quantize_lm_head:
        raise ValueError("quantize_lm_head needs the CPU kernels")
    if wanted.quantized_activations == "int8":
        raise ValueError("quantized_activations int8 needs the CPU kernels")
    dtype = resolve_dtype(wanted.dtype, model.checkpoint_dtype, transfers.device)
    return load_torch_model(
        config,
        model,
        transfers,
        dtype=dtype,
        kv_format=choose_kv_format(config, model, dtype, transfers.device),
        requested=requested,
    )


def _load_on_kernels(
    config: WorkerConfig,
    model: ModelConfig,
    transfers: Transfers,
    kernels: CpuKernels,
    early_weights: EarlyWeights | None,
    requested: RequestedAdapters | None,
) -> StepModel:
    from taco_worker.backends.cpu.cpu_model import CpuModel

    if config.attention_backend is not None:
        raise ValueError(
            f"attention_backend {config.attention_backend!r} is not supported on a CPU: its "
            "kernels compute whole layers"
        )
    wanted = config.model
    is_converted = model.files.load_format == "sharded_state"
    header = read_header(model.files.directory) if is_converted else None
    own = model.checkpoint_dtype if header is None else header.dtype
    dtype = resolve_dtype(wanted.dtype, own, transfers.device)
    kv_format = choose_kv_format(config, model, dtype, transfers.device)
    if header is None:
        weights = _pack_weights(wanted, model, dtype, kernels, early_weights)
    else:
        weights = _map_weights(wanted, model, header, dtype, kernels)
    if requested is not None:
        weights.pack_adapters(read_factors(requested))
    return CpuModel(model.plan, kernels, weights, kv_format=kv_format)


def _map_weights(
    wanted: WantedModel,
    model: ModelConfig,
    header: PackedHeader,
    dtype: torch.dtype,
    kernels: CpuKernels,
) -> CpuWeights:
    """The weights of a converted checkpoint, which are mapped as they are."""
    from taco_worker.backends.cpu.cpu_weights import CpuWeights
    from taco_worker.backends.cpu.packed_weights import map_weights

    header.check_choices(wanted.quantization, wanted.quantized_activations, wanted.quantize_lm_head)
    weights = CpuWeights(
        model.plan,
        kernels,
        dtype=dtype,
        quantization=stored_as(header.quantization),
        quantizes_lm_head=header.quantize_lm_head,
        codes=header.codes,
        activations=header.quantized_activations,
    )
    map_weights(weights, model.architecture, model.files.directory, header)
    return weights


def _pack_weights(
    wanted: WantedModel,
    model: ModelConfig,
    dtype: torch.dtype,
    kernels: CpuKernels,
    early_weights: EarlyWeights | None,
) -> CpuWeights:
    """The weights of a checkpoint, read and packed for the kernels."""
    from taco_worker.backends.cpu.cpu_weights import CpuWeights

    check_codes(wanted, model, dtype)
    is_random = model.files.load_format == "dummy"
    weights = CpuWeights(
        model.plan,
        kernels,
        dtype=dtype,
        quantization=stored_as(wanted.quantization),
        quantizes_lm_head=wanted.quantize_lm_head,
        codes=None
        if is_random
        else code_segments(model.plan, model.quantization, model.online_quantization),
        activations=wanted.quantized_activations,
        early_weights=early_weights,
    )
    load_weights(weights, model, seed=wanted.seed)
    return weights


def check_codes(wanted: WantedModel, model: ModelConfig, dtype: torch.dtype) -> None:
    """Check what multiplies the codes of a model on the CPU kernels, if it keeps them.

    Raises:
        ValueError: `quantized_activations` contradicts the model or the other settings.
    """
    if model.files.load_format in LOAD_FORMATS_WITHOUT_CODES:
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
