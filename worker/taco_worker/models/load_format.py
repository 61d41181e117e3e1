"""Validates `--load-format`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from taco_proto.config import ModelConfig
from taco_worker.models.weight_files import LoadFormat

LOAD_FORMATS_WITHOUT_CODES = ("dummy", "sharded_state")
"""Random weights have no codes; the header of converted ones says what multiplies theirs."""

_URI = "tensorizer_uri"


def load_format_of(wanted: ModelConfig) -> LoadFormat:
    """Raises ValueError for an unknown load format."""
    match wanted.load_format:
        case "auto" | "safetensors" | "pt" | "npcache" | "mistral" as load_format:
            return load_format
        case "gguf" | "tensorizer" | "sharded_state" | "dummy" as load_format:
            return load_format
        case "np-cache":
            return "npcache"
        case "bitsandbytes":  # the quantization of this name; its files are found as any others
            return "auto"
        case unknown:
            known = ", ".join(get_args(LoadFormat))
            raise ValueError(f"unknown load format {unknown!r}; known: {known}")


def tensorizer_file_of(wanted: ModelConfig) -> Path | None:
    """The file that `--model-loader-extra-config` names for `--load-format tensorizer`, if any.

    Raises:
        ValueError: an option is unknown, or belongs to another load format.
    """
    options = dict(wanted.model_loader_extra_config or {})
    if options and wanted.load_format != "tensorizer":
        raise ValueError(
            f"load format {wanted.load_format} has no further options: model_loader_extra_config "
            f"has {', '.join(options)}"
        )
    uri = options.pop(_URI, None)
    if options:
        raise ValueError(f"unknown options of tensorizer: {', '.join(options)}; known: {_URI}")
    if uri is None:
        return None
    if not isinstance(uri, str) or "://" in (path := uri.removeprefix("file://")):
        raise ValueError(f"{_URI} must be a file on this machine, not {uri!r}")
    return Path(path)
