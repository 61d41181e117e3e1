"""Converts a model to a directory whose weights are packed: `taco_llm convert`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from taco_kernels.library import CpuKernels
from taco_proto.config import ModelConfig as WantedModel
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.backends.cpu.packed_weights import RowRecorder, save_weights
from taco_worker.backends.model_loading import check_codes
from taco_worker.kv_scales.checkpoint_scales import read_scale_tensors
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.models.code_segments import code_segments
from taco_worker.models.converted.header import KV_CACHE_SETTINGS
from taco_worker.models.dtypes import resolve_dtype
from taco_worker.models.load_format import LOAD_FORMATS_WITHOUT_CODES
from taco_worker.models.weight_loading import load_weights
from taco_worker.quant.config_files import quantization_config
from taco_worker.quant.registry import stored_as

# Files that are not copied: weights, and settings of a quantization that they no longer have.
_WEIGHT_ENDS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".index.json")
_SETTINGS = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
_QUANTIZATION = "quantization_config"


def convert_model(
    wanted: WantedModel, out: Path, start_kernels: Callable[[], CpuKernels | None]
) -> int:
    """Load a model as a worker does, and write its packed weights, configuration and tokenizer.

    Args:
        out: a new or empty directory.
        start_kernels: called when the model is known to be valid.

    Returns:
        The bytes of the packed matrices.

    Raises:
        ValueError: the model cannot be found, read or packed, or `out` cannot be written.
    """
    model = find_checkpoint(wanted)
    if model.files.load_format == "sharded_state":
        raise ValueError(
            f"{model.files.directory} is converted already: serve it, or convert the model that it "
            "was made of"
        )
    if model.files.load_format in LOAD_FORMATS_WITHOUT_CODES:
        raise ValueError(f"load format {model.files.load_format} cannot be converted")
    kernels = start_kernels()
    if kernels is None:
        raise ValueError("taco_llm convert needs the CPU kernels, which are not available")
    dtype = resolve_dtype(wanted.dtype, model.checkpoint_dtype, torch.device("cpu"))
    check_codes(wanted, model, dtype)
    codes = code_segments(model.plan, model.quantization, model.online_quantization)
    weights = CpuWeights(
        model.plan,
        kernels,
        dtype=dtype,
        quantization=stored_as(wanted.quantization),
        quantizes_lm_head=wanted.quantize_lm_head,
        codes=codes,
        activations=wanted.quantized_activations,
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ValueError(f"{out} is not empty: give a new directory")
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}") from None
    recorder = RowRecorder(weights)
    load_weights(recorder, model)
    scales = {name: tensor.clone() for _, name, tensor in read_scale_tensors(model.files)}
    try:
        _copy_files(model.files.directory, out)
        save_weights(weights, recorder, model.architecture, wanted, codes, scales, out)
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}") from None
    return weights.memory.numel()


def _copy_files(model_dir: Path, out: Path) -> None:
    for path in sorted(model_dir.iterdir()):
        if not path.is_file() or path.name.endswith(_WEIGHT_ENDS) or path.name in _SETTINGS:
            continue
        if path.name == "config.json":
            fields = json.loads(path.read_text())
            settings = quantization_config(model_dir, fields) or {}
            fields.pop(_QUANTIZATION, None)
            fields |= {name: settings[name] for name in KV_CACHE_SETTINGS if name in settings}
            (out / path.name).write_text(json.dumps(fields, indent=2) + "\n")
        else:
            shutil.copyfile(path, out / path.name)
