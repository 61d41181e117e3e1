"""Checks of a model before any process starts, without torch and without reading the weights.

They take milliseconds. The worker repeats them, and more, after its start.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

from taco_proto.config import ModelConfig as WantedModel
from taco_proto.config import WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker.devices.byte_units import gibibytes
from taco_worker.devices.cpu_memory import available_cpu_memory
from taco_worker.devices.gpu_presence import runs_on_cpu
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.load_format import load_format_of
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.weight_files import check_weight_files

# Bytes per element on a CPU. An explicit float16 is computed in float32; auto takes bfloat16.
_DTYPE_BYTES = {"half": 4, "float16": 4, "bfloat16": 2, "float": 4, "float32": 4}
_KV_DTYPE_BYTES = {**_DTYPE_BYTES, "int8": 1, "fp8": 1, "fp8_e4m3": 1}


def check_model(wanted: WantedModel, *, has_weights: bool = True) -> ModelConfig:
    """Read a model's configuration and, for a directory, the headers of its weight files.

    For a hub id only config.json is downloaded.

    Args:
        has_weights: whether this machine will hold the weights.

    Raises:
        ConfigurationError: the model cannot be found or read, has an unknown architecture, is
            quantized, or is shorter than `max_model_len`; a weight file is missing or truncated.
    """
    try:
        load_format = load_format_of(wanted)
        directory = _config_directory(wanted)
        model = load_hf_config(
            directory,
            rope_scaling=wanted.rope_scaling,
            rope_theta=wanted.rope_theta,
            config_format=wanted.config_format,
            hf_overrides=wanted.hf_overrides,
            disable_sliding_window=wanted.disable_sliding_window,
        )
        limit = model.plan.max_position_embeddings
        if wanted.max_model_len is not None and wanted.max_model_len > limit:
            raise ValueError(
                f"max_model_len {wanted.max_model_len} is more than the {limit} tokens that the "
                "model allows"
            )
        if has_weights and Path(wanted.model).expanduser().is_dir():
            check_weight_files(directory, model, load_format)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return model


def check_memory(config: WorkerConfig, model: ModelConfig, count: int = 1) -> None:
    """Check that `count` workers on this machine's CPU can hold the weights and the KV blocks.

    A model on a GPU is not checked: only torch knows the GPU's free memory.

    Raises:
        ConfigurationError: the weights, with the configured KV blocks, take more memory than is
            available.
    """
    if not runs_on_cpu(config.device):
        return
    dtype_bytes = _DTYPE_BYTES.get(_cpu_dtype(config.model, model), 4)
    matrix_bytes = 1 if config.model.quantization == "int8" else dtype_bytes
    # The embeddings stay in the memory-mapped file unless they are tied to the LM head.
    plan = model.plan
    embeddings = 0 if plan.has_tied_head else prod(plan.parameters[plan.embedding_table].shape)
    weights = (num_parameters(plan) - embeddings) * matrix_bytes
    kv_bytes = _KV_DTYPE_BYTES.get(config.kv_cache_dtype, dtype_bytes)
    num_tokens = (config.num_blocks or 0) * config.block_size
    blocks = num_tokens * plan.kv_elements_per_token * kv_bytes
    available = available_cpu_memory()
    if count * (weights + blocks) > available:
        workers = "" if count == 1 else f" of each of {count} workers"
        with_blocks = f" and {config.num_blocks} KV blocks {gibibytes(blocks)}" if blocks else ""
        raise ConfigurationError(
            f"the weights{workers} take {gibibytes(weights)}{with_blocks}, and only "
            f"{gibibytes(available)} of memory are available"
        )


def num_parameters(plan: ModelPlan) -> int:
    """Number of elements of the model's matrices: with embeddings, without norms and biases."""
    shapes = [parameter.shape for parameter in plan.parameters.values()]
    return sum(prod(shape) for shape in shapes if len(shape) > 1)


def _cpu_dtype(wanted: WantedModel, model: ModelConfig) -> str:
    if wanted.dtype != "auto":
        return wanted.dtype
    stored = (model.checkpoint_dtype or "float32").removeprefix("torch.")
    return "bfloat16" if stored in ("half", "float16") else stored


def _config_directory(wanted: WantedModel) -> Path:
    directory = Path(wanted.model).expanduser()
    if directory.is_dir():
        return directory
    from taco_worker.models.download import download_config  # importing it takes 0.2 s

    download_dir = None if wanted.download_dir is None else Path(wanted.download_dir)
    return download_config(wanted.model, wanted.revision, download_dir)
