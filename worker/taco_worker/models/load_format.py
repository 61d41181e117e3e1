"""Validates `--load-format`."""

from __future__ import annotations

from typing import get_args

from taco_proto.config import ModelConfig
from taco_worker.models.weight_files import LoadFormat


def load_format_of(wanted: ModelConfig) -> LoadFormat:
    """Raises ValueError for an unknown load format."""
    match wanted.load_format:
        case "auto" | "safetensors" | "pt" | "mistral" | "dummy" as load_format:
            return load_format
        case unknown:
            known = ", ".join(get_args(LoadFormat))
            raise ValueError(f"unknown load format {unknown!r}; known: {known}")
