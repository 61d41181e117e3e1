"""Runs the draft model with Intel's extension for PyTorch (IPEX) instead of our CPU kernels."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

import torch
from torch import nn

from taco_worker.backends.torch.decoder import Decoder
from taco_worker.layers.linear import Linear
from taco_worker.models.dtypes import dtype_name

_PACKAGE = "intel_extension_for_pytorch"
_TORCH = "2.8"


def import_ipex() -> ModuleType:
    """Import IPEX.

    Raises:
        ValueError: the package is missing, or torch is not the release that it supports.
    """
    install = "pip install 'taco-llm[ipex]' in a separate environment"
    if find_spec(_PACKAGE) is None:
        raise ValueError(f"draft_backend ipex needs the package {_PACKAGE}: {install}")
    if torch.__version__.split("+")[0].rpartition(".")[0] != _TORCH:
        # With another torch its import ends the process.
        raise ValueError(
            f"draft_backend ipex needs torch {_TORCH}, and this is {torch.__version__}: {install}"
        )
    import intel_extension_for_pytorch

    return intel_extension_for_pytorch


def optimize(decoder: Decoder, ipex: ModuleType, quantization: str | None) -> None:
    """Replace the decoder's linear layers by those of `ipex`, in place.

    Args:
        quantization: int8 (weights only) or None.

    Raises:
        ValueError: this CPU lacks what the decoder's dtype needs.
    """
    use_plain_linears(decoder)
    try:
        if quantization is None:
            ipex.optimize(decoder.eval(), dtype=decoder.dtype, inplace=True)
            return
        mapping = ipex.quantization.get_weight_only_quant_qconfig_mapping(
            weight_dtype=ipex.quantization.WoqWeightDtype.INT8
        )
        ipex.quantization.prepare(decoder.eval(), mapping, inplace=True)
        ipex.quantization.convert(decoder, inplace=True)
    except (AssertionError, RuntimeError) as error:
        wanted = quantization or dtype_name(decoder.dtype)
        raise ValueError(f"draft_backend ipex cannot run {wanted} here: {error}") from error


def use_plain_linears(decoder: Decoder) -> None:
    """Replace linear layers by `nn.Linear`: IPEX optimizes only those with unshared weights."""
    for module in list(decoder.modules()):
        for name, child in module.named_children():
            if isinstance(child, Linear):
                setattr(module, name, _plain(child.weight, child.bias))
    if decoder.config.tied_embeddings:
        weight = nn.Parameter(decoder.embed_tokens.weight.clone(), requires_grad=False)
        decoder.lm_head = _plain(weight, None)  # type: ignore[assignment]


def _plain(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    out_features, in_features = weight.shape
    linear = nn.Linear(in_features, out_features, bias=False, device="meta")
    linear.weight = weight
    linear.register_parameter("bias", bias)
    return linear
