"""The methods of quantized checkpoints, and the names that `--quantization` takes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from taco_worker.quant.config_files import with_file
from taco_worker.quant.weight_format import OnlineQuantization, Quantization

# Modules with a function `read(quantization_config, model_dir)`, by `quant_method`.
_CHECKPOINT_METHODS = {
    "aqlm": "taco_worker.quant.formats.aqlm",
    "auto-round": "taco_worker.quant.formats.auto_round",
    "awq": "taco_worker.quant.formats.awq",
    "bitsandbytes": "taco_worker.quant.formats.bitsandbytes.checkpoint",
    "compressed-tensors": "taco_worker.quant.formats.compressed_tensors.config",
    "deepspeedfp": "taco_worker.quant.formats.deepspeedfp",
    "fbgemm_fp8": "taco_worker.quant.formats.fbgemm_fp8",
    "fp8": "taco_worker.quant.formats.fp8",
    "gptq": "taco_worker.quant.formats.gptq",
    "gptq_marlin_24": "taco_worker.quant.formats.gptq",
    "marlin": "taco_worker.quant.formats.gptq",
    "modelopt": "taco_worker.quant.formats.modelopt",
    "modelopt_fp4": "taco_worker.quant.formats.modelopt",
    "gguf": "taco_worker.quant.gguf.read",
    "mxfp4": "taco_worker.quant.formats.mxfp4",
    "qqq": "taco_worker.quant.formats.qqq",
    "torchao": "taco_worker.quant.formats.torchao.checkpoint",
}
# Other names that configurations have for them.
_CONFIG_SYNONYMS = {"intel/auto-round": "auto-round"}
# Modules with a function `online()`, by the name of the method.
_ONLINE_METHODS = {
    "bitsandbytes": "taco_worker.quant.formats.bitsandbytes.online",
    "experts_int8": "taco_worker.quant.formats.experts_int8",
    "fp8": "taco_worker.quant.formats.fp8",
}
# Names of methods that a back end applies itself when it stores matrices.
_STORED_AS = {"int8": "int8", "neuron_quant": "int8", "tpu_int8": "int8"}
# Methods whose checkpoints back ends do not round again: their codes have 8 bits or fewer.
_NOT_STORED_AGAIN = frozenset({"bitsandbytes"})
# Other names of checkpoint methods: there is one kernel for all of them.
_SYNONYMS = {"awq_marlin": "awq", "gptq_marlin": "gptq"}


def quantization_names() -> tuple[str, ...]:
    """The names that `--quantization` takes."""
    return tuple(sorted({*_CHECKPOINT_METHODS, *_ONLINE_METHODS, *_STORED_AS, *_SYNONYMS}))


def stored_as(wanted: str | None) -> str | None:
    """What back ends quantize matrices to when they store them: int8, or None."""
    return None if wanted is None else _STORED_AS.get(wanted)


def read_quantization(
    config: Mapping[str, Any] | None, model_dir: Path, wanted: str | None
) -> Quantization | None:
    """The quantization of a checkpoint; None: it is not quantized.

    Args:
        config: as `config_files.quantization_config` finds it.
        wanted: as `--quantization` has it; None: whatever the checkpoint has.

    Raises:
        ValueError: the method is unknown or not the wanted one, or its settings are invalid.
    """
    if wanted is not None and wanted not in quantization_names():
        known = ", ".join(quantization_names())
        raise ValueError(f"unknown quantization {wanted!r}; known: {known}")
    if not config:
        if wanted is not None and wanted not in {*_ONLINE_METHODS, *_STORED_AS}:
            lacks = "is no .gguf file" if wanted == "gguf" else "has no quantization_config"
            raise ValueError(
                f"quantization {wanted!r} needs a checkpoint that is quantized so, and this one "
                f"{lacks}"
            )
        return None
    method = config.get("quant_method", "unknown")
    method = _CONFIG_SYNONYMS.get(method, method) if isinstance(method, str) else method
    if not isinstance(method, str) or method not in _CHECKPOINT_METHODS:
        shown = method if isinstance(method, str) and method.isprintable() else repr(method)
        unknown = ValueError(f"the checkpoint is quantized ({shown:.60}), which is not supported")
        raise with_file(config, unknown)
    try:
        reader = import_module(_CHECKPOINT_METHODS[method])
        quantization: Quantization = reader.read(config, model_dir)
    except ValueError as error:
        raise with_file(config, error) from None
    is_own = wanted is None or (wanted in _STORED_AS and method not in _NOT_STORED_AGAIN)
    # Configurations of method "gptq" may describe the files of method "marlin".
    if not is_own and _SYNONYMS.get(str(wanted), wanted) not in (method, quantization.method):
        name = quantization.method
        raise ValueError(
            f"the checkpoint is quantized ({name}), which is not {wanted!r}: leave out quantization"
        )
    return quantization


def read_online_quantization(wanted: str | None) -> OnlineQuantization | None:
    """What quantizes the matrices of an unquantized checkpoint at load, if anything does."""
    if wanted is None or wanted not in _ONLINE_METHODS:
        return None
    online: OnlineQuantization = import_module(_ONLINE_METHODS[wanted]).online()
    return online
