"""Which modules of a quantized checkpoint its files store as they are, whatever its rules say.

The rules of most writers say nothing of modules that they never quantize, such as embeddings, the
routers of experts, or the vision tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files, stored_tensors
from taco_worker.quant.config_files import with_file
from taco_worker.quant.gguf.checkpoint import is_gguf
from taco_worker.quant.modules import is_embedding, is_router
from taco_worker.quant.weight_format import Quantization, WeightFormat

_WEIGHT, _BIAS = "weight", "bias"
_UNQUANTIZED = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredModules:
    """A quantization without the modules that the files store as they are.

    Attributes:
        settings: that the rules were read from.
        unquantized: these modules.
        quantized: the others that have tensors.
    """

    rules: Quantization
    settings: Mapping[str, Any]
    unquantized: frozenset[str]
    quantized: frozenset[str]

    @property
    def method(self) -> str:
        return self.rules.method

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        try:
            format_ = self.rules.format_of(module, n, k)
        except ValueError as error:
            if module in self.quantized:
                raise with_file(self.settings, error) from None
            return None  # of a layout that this checkpoint does not have
        if format_ is None or module not in self.unquantized:
            return format_
        weight = format_.tensors.get(f".{_WEIGHT}")
        is_rounded_at_load = weight is not None and not {*weight.dtypes}.isdisjoint(_UNQUANTIZED)
        return format_ if is_rounded_at_load else None

    def is_extra(self, name: str) -> bool:
        return self.rules.is_extra(name)


@dataclass(frozen=True, slots=True)
class LinearModules:
    """A quantization of which no headers tell what is stored: never of embeddings and routers."""

    rules: Quantization
    settings: Mapping[str, Any]

    @property
    def method(self) -> str:
        return self.rules.method

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        if is_embedding(module) or is_router(module):
            return None
        try:
            return self.rules.format_of(module, n, k)
        except ValueError as error:
            raise with_file(self.settings, error) from None

    def is_extra(self, name: str) -> bool:
        return self.rules.is_extra(name)


def with_stored_modules(
    rules: Quantization,
    settings: Mapping[str, Any],
    plan: ModelPlan,
    checkpoint: CheckpointFiles,
) -> Quantization:
    """The quantization of a checkpoint, without the modules that its files store as they are.

    Args:
        settings: that `rules` were read from.

    Raises:
        ValueError: the header of a file is damaged.
    """
    if checkpoint.load_format in ("dummy", "sharded_state"):
        return LinearModules(rules, settings)  # no file stores matrices as the rules say
    try:
        files = find_weight_files(checkpoint)
    except ValueError:
        return LinearModules(rules, settings)
    if any(is_gguf(file) for file in files):
        return rules  # it says what each tensor is
    unquantized: set[str] = set()
    quantized: set[str] = set()
    for file in files:
        for stored_name, tensor in stored_tensors(file).items():
            module, _, suffix = (plan.names.canonical(stored_name) or "").rpartition(".")
            if suffix == _WEIGHT and tensor.dtype in _UNQUANTIZED:
                unquantized.add(module)
            elif suffix != _BIAS:
                quantized.add(module)
    return StoredModules(rules, settings, frozenset(unquantized - quantized), frozenset(quantized))
