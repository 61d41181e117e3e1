"""Identifies the weights and the KV layout, so that a worker never reads another model's KV."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from taco_proto.config import WorkerConfig
from taco_worker.layers.rotary import attention_factor, inverse_frequencies
from taco_worker.models.config_reading import config_file
from taco_worker.models.lora.adapter import adapter_file
from taco_worker.models.lora.settings import SETTINGS_FILE
from taco_worker.models.rope import exact_length
from taco_worker.models.step_model import StepModel
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files

FINGERPRINT_BYTES = 16
# Version of the file format in block_file.py.
_VERSION = 1
_HEAD_BYTES = 1 << 20
_NUM_SAMPLES = 1024
_SAMPLE_BYTES = 4096


def fingerprint(
    config: WorkerConfig, checkpoint: CheckpointFiles, model: StepModel, max_model_len: int
) -> bytes:
    """16 bytes that differ if the KV of two workers differs.

    Weights are identified by their files' names and sizes, their first MiB (the header of a
    safetensors file) and 1024 samples of each file. Reading all bytes would take longer than
    loading the model.
    """
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    wanted = config.model
    settings = {
        "version": _VERSION,
        "layout": model.kv_layout,
        "block_size": config.block_size,
        "block_bytes": model.kv_block_bytes(config.block_size),
        "dtype": wanted.dtype,
        "quantization": wanted.quantization,
        "quantized_activations": wanted.quantized_activations,
        "rope_scaling": wanted.rope_scaling,
        "rope_theta": wanted.rope_theta,
        "hf_overrides": wanted.hf_overrides,
    }
    if frequencies := _frequencies_of_length(model, max_model_len):
        settings["frequencies"] = frequencies
    digest.update(json.dumps(settings, sort_keys=True, default=dict).encode())
    digest.update(config_file(checkpoint.directory, wanted.config_format).read_bytes())
    if wanted.load_format == "dummy":
        digest.update(f"dummy {wanted.seed}".encode())
    else:
        files = find_weight_files(checkpoint)
        if checkpoint.adapter is not None:
            adapter = checkpoint.adapter
            files = [*files, adapter / SETTINGS_FILE, adapter_file(adapter)]
        for file in files:
            digest.update(f"\n{file.name} {file.stat().st_size}\n".encode())
            _add_samples(digest, file)
    for name, directory in checkpoint.lora_modules:
        digest.update(f"\nadapter {name}\n".encode())
        digest.update((directory / SETTINGS_FILE).read_bytes())
        _add_samples(digest, adapter_file(directory))
    return digest.digest()


def _frequencies_of_length(model: StepModel, max_model_len: int) -> dict[str, list[float]]:
    """The rotary frequencies that follow from the longest sequence that is served, by table.

    Keys are stored rotated. Tables whose frequencies no length changes are left out.
    """
    return {
        name: [
            *inverse_frequencies(table.rotary, table.rotary_dim, max_model_len).tolist(),
            attention_factor(table.rotary, max_model_len),
        ]
        for name, table in model.plan.rope_tables.items()
        if exact_length(table.rotary, max_model_len) is not None
    }


def _add_samples(digest: hashlib.blake2b, file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb", buffering=0) as content:
        digest.update(content.read(_HEAD_BYTES))
        step = max(_SAMPLE_BYTES, size // _NUM_SAMPLES)
        for start in range(_HEAD_BYTES, size, step):
            content.seek(start)
            digest.update(content.read(_SAMPLE_BYTES))
