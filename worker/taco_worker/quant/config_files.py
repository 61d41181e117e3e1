"""Finds the quantization settings of a checkpoint: in config.json, or in a separate file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_common.json_file import read_json_object

# The second is the older name of llm-compressor.
_FIELDS = ("quantization_config", "compression_config")
# Files of writers that leave config.json as it is, in the order in which they are looked for.
_MODELOPT, _GPTQ, _OTHER = "hf_quant_config.json", "quantize_config.json", "quant_config.json"


class StoredSettings(dict[str, Any]):
    """Settings of a quantization.

    Attributes:
        source: where they are, for messages: a field of config.json, or another file.
        file: that has them.
    """

    def __init__(self, source: str, values: Mapping[str, Any], file: Path) -> None:
        super().__init__(values)
        self.source = source
        self.file = file


def source_of(settings: Mapping[str, Any]) -> str:
    """Where settings are, for messages."""
    return settings.source if isinstance(settings, StoredSettings) else _FIELDS[0]


def with_file(settings: Mapping[str, Any], error: ValueError) -> ValueError:
    """An error about settings, whose message begins with their file unless it names a file."""
    if not isinstance(settings, StoredSettings):
        return error
    file, message = settings.file, str(error)
    is_named = str(file.parent) in message or (
        file.name in message and settings.source == file.name
    )
    return error if is_named else ValueError(f"{file}: {message}")


def quantization_config(model_dir: Path, hf_config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The settings with their `quant_method`; None: the checkpoint is not quantized.

    Raises:
        ValueError: a file cannot be read.
    """
    for name in _FIELDS:
        if config := hf_config.get(name):
            return StoredSettings(name, config, model_dir / "config.json")
    if (path := model_dir / _MODELOPT).is_file():
        settings = read_json_object(path)
        inner = settings.get("quantization") or {}
        if not isinstance(inner, Mapping):
            raise ValueError(f"{path}: quantization must be an object, not {inner!r:.100}")
        return StoredSettings(_MODELOPT, {"quant_method": "modelopt", **inner, **settings}, path)
    if (path := model_dir / _GPTQ).is_file():
        return StoredSettings(_GPTQ, {"quant_method": "gptq", **read_json_object(path)}, path)
    if (path := model_dir / _OTHER).is_file():
        settings = read_json_object(path)
        method = "awq" if "w_bit" in settings else "deepspeedfp"
        return StoredSettings(_OTHER, {"quant_method": method, **settings}, path)
    return None
