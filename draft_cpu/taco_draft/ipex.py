"""Runs the draft model with Intel's extension for PyTorch (IPEX) instead of our CPU kernels."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

import torch
from torch import nn

from taco_worker.backends.torch.plan_network import PlanNetwork
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


def optimize(network: PlanNetwork, ipex: ModuleType, quantization: str | None) -> None:
    """Replace the network's linear layers by those of `ipex`, in place.

    Args:
        quantization: int8 (weights only) or None.

    Raises:
        ValueError: this CPU lacks what the network's dtype needs.
    """
    use_plain_linears(network)
    try:
        if quantization is None:
            ipex.optimize(network.eval(), dtype=network.dtype, inplace=True)
            return
        mapping = ipex.quantization.get_weight_only_quant_qconfig_mapping(
            weight_dtype=ipex.quantization.WoqWeightDtype.INT8
        )
        ipex.quantization.prepare(network.eval(), mapping, inplace=True)
        ipex.quantization.convert(network, inplace=True)
    except (AssertionError, RuntimeError) as error:
        wanted = quantization or dtype_name(network.dtype)
        raise ValueError(f"draft_backend ipex cannot run {wanted} here: {error}") from error


def use_plain_linears(network: PlanNetwork) -> None:
    """Replace linear layers by `nn.Linear`: IPEX optimizes only those with unshared weights."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, Linear):
                setattr(module, name, _plain(_unshared(network, child.weight), child.bias))


def _unshared(network: PlanNetwork, weight: nn.Parameter) -> nn.Parameter:
    """The weight, or a copy if the embeddings use it, too."""
    if weight is not network.by_name[network.plan.embedding_table]:
        return weight
    return nn.Parameter(weight.clone(), requires_grad=False)


def _plain(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    out_features, in_features = weight.shape
    linear = nn.Linear(in_features, out_features, bias=False, device="meta")
    linear.weight = weight
    linear.register_parameter("bias", bias)
    return linear
