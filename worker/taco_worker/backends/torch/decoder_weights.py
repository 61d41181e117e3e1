"""Loads weights into the torch decoder, and lists the shapes of a decoder's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from taco_worker.attention.backend import create_attention_backend
from taco_worker.backends.torch.decoder import Decoder
from taco_worker.layers.ops import TorchOps
from taco_worker.models.config import ModelConfig
from taco_worker.models.decoder_config import DecoderConfig
from taco_worker.models.weight_files import LoadFormat
from taco_worker.models.weight_loading import load_weights


def load_model(
    decoder: Decoder,
    model_dir: Path,
    config: ModelConfig,
    *,
    load_format: LoadFormat = "auto",
    seed: int = 0,
) -> None:
    """Load weights into a torch decoder; see `load_weights`."""
    load_weights(_DecoderSink(decoder), model_dir, config, load_format=load_format, seed=seed)


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of a decoder's parameters, by name."""
    meta = torch.device("meta")
    backend = create_attention_backend("torch")
    decoder = Decoder(config, backend, TorchOps(), dtype=torch.float32, device=meta)
    return _shapes(decoder)


class _DecoderSink:
    def __init__(self, decoder: Decoder) -> None:
        self.shapes: Mapping[str, tuple[int, ...]] = _shapes(decoder)
        self.dtype = decoder.dtype
        self.device = decoder.device
        self._parameters = dict(decoder.named_parameters())

    def put(self, parameter: str, start: int, rows: Tensor) -> None:
        self._parameters[parameter].data[start : start + rows.shape[0]].copy_(rows)


def _shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}
