"""Checks of a model before any process starts, without torch and without reading the weights.

They take milliseconds. The worker repeats them, and more, after its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Literal

from taco_kernels.code_layout import RowSegment
from taco_proto.config import ModelConfig as WantedModel
from taco_proto.config import WorkerConfig
from taco_proto.errors import ArgumentError, ConfigurationError
from taco_proto.log_text import one_line
from taco_worker.devices.byte_units import gibibytes
from taco_worker.devices.cpu_memory import available_cpu_memory
from taco_worker.devices.gpu_presence import runs_on_cpu
from taco_worker.kv_scales.checkpoint_scales import check_checkpoint_scales
from taco_worker.kv_scales.scales_file import read_scales_file
from taco_worker.kv_scales.stored_kv_cache import FLOAT8_NAMES, wanted_kv_cache_dtype
from taco_worker.models.checkpoint import read_checkpoint
from taco_worker.models.code_segments import CodeSegment, code_segments
from taco_worker.models.config import ModelConfig
from taco_worker.models.converted.header import read_header
from taco_worker.models.int8_activations import check_int8_activations
from taco_worker.models.load_format import LOAD_FORMATS_WITHOUT_CODES
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.quant.activations import check_quantized_activations
from taco_worker.quant.registry import stored_as
from taco_worker.recurrent_limits import limit_recurrent

# Bytes per element on a CPU. An explicit float16 is computed in float32; auto takes bfloat16.
_DTYPE_BYTES = {"half": 4, "float16": 4, "bfloat16": 2, "float": 4, "float32": 4}
_CODED_BYTES = _DTYPE_BYTES["bfloat16"]  # of the models that keep codes
_KV_DTYPE_BYTES = {**_DTYPE_BYTES, **dict.fromkeys(("int8", *FLOAT8_NAMES), 1)}


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
        directory = _config_directory(wanted)
        model = read_checkpoint(wanted, directory)
        limit = model.plan.max_position_embeddings
        if wanted.max_model_len is not None and wanted.max_model_len > limit:
            raise ArgumentError(
                f"max_model_len {wanted.max_model_len} is more than the {limit} tokens that the "
                "model allows"
            )
        if has_weights and Path(wanted.model).expanduser().is_dir():
            check_weight_files(model)
            if model.files.load_format == "sharded_state":
                read_header(directory).check_choices(
                    wanted.quantization, wanted.quantized_activations, wanted.quantize_lm_head
                )
    except ValueError as error:
        raise ConfigurationError(one_line(str(error))) from None
    return model


def check_states(config: WorkerConfig, model: ModelConfig) -> None:
    """Raises ConfigurationError if the config asks for what recurrent states exclude."""
    try:
        limit_recurrent(config, model.plan)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def check_memory(config: WorkerConfig, model: ModelConfig, count: int = 1) -> None:
    """Check that this machine's memory can hold what `count` workers put there.

    These are host tiers of a configured size, and on a CPU the weights and KV blocks. A model on a
    GPU is not checked: only torch knows the GPU's free memory.

    Raises:
        ConfigurationError: they take more memory than is available.
    """
    host_tier = 0 if config.host_kv_may_shrink else config.host_kv_bytes
    available = available_cpu_memory()
    if count * host_tier > available:
        workers = "" if count == 1 else f" of each of {count} workers"
        raise ConfigurationError(
            f"the host tier{workers} takes {gibibytes(host_tier)}, and only "
            f"{gibibytes(available)} of memory are available"
        )
    if not runs_on_cpu(config.device):
        return
    # Workers share the memory of a converted file.
    shared = _converted_bytes(model)
    weights = matrix_bytes(config, model) if shared is None else 0
    kv_dtype = wanted_kv_cache_dtype(config.kv_cache_dtype, model.stored_kv_cache)
    kv_bytes = _KV_DTYPE_BYTES.get(kv_dtype, _number_bytes(config, model))
    num_tokens = (config.num_blocks or 0) * config.block_size
    blocks = num_tokens * model.plan.kv_elements_per_token * kv_bytes
    if (shared or 0) + count * (weights + blocks + host_tier) > available:
        workers = "" if count == 1 else f" of each of {count} workers"
        with_blocks = f" and {config.num_blocks} KV blocks {gibibytes(blocks)}" if blocks else ""
        with_tier = f" and the host tier {gibibytes(host_tier)}" if host_tier else ""
        taken = f"{gibibytes(shared or weights)}{with_blocks}{with_tier}"
        raise ConfigurationError(
            f"the weights{workers} take {taken}, and only "
            f"{gibibytes(available)} of memory are available"
        )


def matrix_bytes(config: WorkerConfig, model: ModelConfig) -> int:
    """About the memory that a worker on a CPU packs a model's matrices into."""
    number_bytes = _number_bytes(config, model)
    if stored_as(config.model.quantization) == "int8":
        number_bytes = 1
    plan = model.plan
    coded: Mapping[str, Sequence[CodeSegment]] = {}
    if number_bytes == _CODED_BYTES:
        coded = code_segments(plan, model.quantization, model.online_quantization)
    # Other embeddings stay in the memory-mapped file unless they are tied to the LM head.
    mapped = set() if plan.has_tied_head else {plan.embedding_table} - coded.keys()
    num_bytes = 0
    for name, parameter in plan.parameters.items():
        *several, columns = parameter.shape
        if segments := coded.get(name):
            rows = [RowSegment(segment.count, segment.layout).widened() for segment in segments]
            num_experts = prod(several[:-1])
            num_bytes += num_experts * sum(segment.nbytes(columns) for segment in rows)
        elif several and name not in mapped:
            num_bytes += prod(parameter.shape) * number_bytes
    return num_bytes


def stored_matrix_type(config: WorkerConfig, model: ModelConfig) -> Literal["f32", "bf16"]:
    """The type of the matrices that a worker on a CPU does not quantize."""
    return "bf16" if _number_bytes(config, model) == _DTYPE_BYTES["bfloat16"] else "f32"


def check_activations(config: WorkerConfig, model: ModelConfig) -> None:
    """Check `quantized_activations` of a worker on a CPU.

    Raises:
        ConfigurationError: it contradicts the model or the other settings.
    """
    wanted = config.model
    if not runs_on_cpu(config.device) or model.files.load_format in LOAD_FORMATS_WITHOUT_CODES:
        return
    dtype = _cpu_dtype(wanted, model)
    try:
        check_quantized_activations(
            wanted.quantized_activations,
            wanted.quantization,
            dtype="bfloat16" if _DTYPE_BYTES.get(dtype) == _CODED_BYTES else "float32",
            has_codes=model.has_codes,
        )
        if wanted.quantized_activations == "int8" and stored_as(wanted.quantization) is None:
            check_int8_activations(
                model.plan,
                code_segments(model.plan, model.quantization, model.online_quantization),
            )
    except ValueError as error:
        raise ConfigurationError(one_line(str(error))) from None


def check_kv_scales(config: WorkerConfig, model: ModelConfig, *, has_weights: bool = True) -> None:
    """Check the file with scales of a float8 KV cache, or the checkpoint's scales by its headers.

    Raises:
        ConfigurationError: scales are missing, of another model, or invalid.
    """
    name = wanted_kv_cache_dtype(config.kv_cache_dtype, model.stored_kv_cache)
    if name not in FLOAT8_NAMES:
        return
    try:
        if config.quantization_param_path is None and model.stored_kv_cache is not None:
            model.stored_kv_cache.check_scales()
        if config.quantization_param_path is not None:
            read_scales_file(Path(config.quantization_param_path), model, FLOAT8_NAMES[name])
        elif has_weights and Path(config.model.model).expanduser().is_dir():
            stored = model.stored_kv_cache
            if stored is None or stored.has_entry_scales:
                check_checkpoint_scales(model)
    except ValueError as error:
        raise ConfigurationError(one_line(str(error))) from None


def _converted_bytes(model: ModelConfig) -> int | None:
    """The size of converted matrices; None: they are not converted."""
    try:
        if model.files.load_format != "sharded_state" or not model.files.directory.is_dir():
            return None
        return read_header(model.files.directory).num_matrix_bytes
    except ValueError as error:
        raise ConfigurationError(one_line(str(error))) from None


def num_parameters(plan: ModelPlan) -> int:
    """Number of elements of the model's matrices: with embeddings, without norms and biases."""
    shapes = [parameter.shape for parameter in plan.parameters.values()]
    return sum(prod(shape) for shape in shapes if len(shape) > 1)


def _number_bytes(config: WorkerConfig, model: ModelConfig) -> int:
    return _DTYPE_BYTES.get(_cpu_dtype(config.model, model), 4)


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
