"""Reads `quantization_config` of compressed-tensors (0.20), and finds the scheme of a module.

Scales of activations (`input_scale`) are not needed: products quantize activations dynamically,
or not at all. The scheme of the KV cache is read elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_worker.quant.expressions import check_expressions
from taco_worker.quant.formats.compressed_tensors.matrices import matrix
from taco_worker.quant.formats.compressed_tensors.weight_scheme import WeightScheme, read_scheme
from taco_worker.quant.modules import is_embedding, matches_name
from taco_worker.quant.stored_headers import StoredHeaders, read_headers
from taco_worker.quant.weight_format import WeightFormat

METHOD = "compressed-tensors"
_MIXED, _DENSE = "mixed-precision", "dense"
_STATUSES = ("initialized", "calibration", "frozen", "compressed", "decompressed")
_CLASSES = ("Linear", "Embedding")
# What follows a module's name in tensors of activations and of the KV cache.
_EXTRA = tuple(
    f".{what}_{part}"
    for what in ("input", "output", "q", "k", "v")
    for part in ("scale", "zero_point", "global_scale")
)


@dataclass(frozen=True, slots=True)
class ConfigGroup:
    """Modules that are quantized alike; `scheme` is None where only activations are."""

    name: str
    targets: tuple[str, ...]
    scheme: WeightScheme | None


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """A checkpoint of compressed-tensors."""

    groups: tuple[ConfigGroup, ...]
    ignored: tuple[str, ...]
    headers: StoredHeaders
    method = METHOD

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        scheme = self._scheme(module)
        weight = f"{module}.weight"
        if not self.headers.is_quantized(weight, otherwise=scheme is not None):
            return None
        if scheme is None:
            dtype = self.headers.dtype(weight)
            raise ValueError(f"{weight} is {dtype}, but no config group quantizes it")
        return matrix(scheme, module, n, k, self.headers)

    def is_extra(self, name: str) -> bool:
        if name.endswith(".weight_zero_point"):  # some writers store the zeros of symmetric codes
            scheme = self._scheme(name.removesuffix(".weight_zero_point"))
            return scheme is not None and scheme.is_symmetric
        if name.endswith(".weight_shape"):
            return self.headers.shape(name) != (2,)
        return name.endswith(_EXTRA)

    def _scheme(self, module: str) -> WeightScheme | None:
        """The scheme of the groups that name the module most exactly.

        Raises:
            ValueError: groups that name it equally exactly store it differently.
        """
        if any(_matches(module, one) for one in self.ignored):
            return None
        for is_level in (_is_name, _is_expression, _is_class):
            found = [
                group
                for group in self.groups
                if any(is_level(target) and _matches(module, target) for target in group.targets)
            ]
            if found:
                first, *others = found
                for other in others:
                    if other.scheme != first.scheme:
                        raise ValueError(
                            f"config groups {first.name} and {other.name} store {module} in "
                            "different ways"
                        )
                return first.scheme
        return None


def read(config: Mapping[str, Any], model_dir: Path) -> CompressedTensors:
    """The quantization of a checkpoint.

    Raises:
        ValueError: a setting is invalid or not supported.
    """
    _refuse_unsupported(config)
    format_ = config.get("format")
    groups = config.get("config_groups") or {}
    if not isinstance(groups, Mapping):
        raise ValueError(f"config_groups must be an object, not {groups!r}")
    if format_ == _DENSE:
        return CompressedTensors((), (), StoredHeaders())
    return CompressedTensors(
        tuple(_read_group(name, group, format_) for name, group in groups.items()),
        _names("ignore", config.get("ignore") or []),
        read_headers(model_dir),
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    sparsity = config.get("sparsity_config") or {}
    if not isinstance(sparsity, Mapping) or sparsity.get("format", _DENSE) != _DENSE:
        kind = sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity
        raise ValueError(f"sparsity_config {kind!r} is not supported; {_DENSE!r} is")
    for field in ("transform_config", "moe_sparsity_config"):
        if config.get(field):
            raise ValueError(f"{field} is not supported")
    status = config.get("quantization_status", "compressed")
    if status is not None and status not in _STATUSES:
        raise ValueError(f"unknown quantization_status {status!r}; known: {', '.join(_STATUSES)}")


def _read_group(name: str, group: Any, default_format: str | None) -> ConfigGroup:
    if not isinstance(group, Mapping):
        raise ValueError(f"config group {name} must be an object, not {group!r}")
    name = f"config group {name}"
    targets = _names(f"{name}: targets", group.get("targets"))
    weights, activations = group.get("weights"), group.get("input_activations")
    if weights is None:
        if activations is None:
            raise ValueError(f"{name} has neither weights nor input_activations")
        return ConfigGroup(name, targets, None)
    if not isinstance(weights, Mapping):
        raise ValueError(f"{name}: weights must be an object, not {weights!r}")
    format_ = group.get("format") or (None if default_format == _MIXED else default_format)
    if format_ is not None and not isinstance(format_, str):
        raise ValueError(f"{name}: format must be a string, not {format_!r}")
    return ConfigGroup(name, targets, read_scheme(name, weights, format_, activations))


def _names(field: str, names: Any) -> tuple[str, ...]:
    """Names and expressions of modules, checked."""
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ValueError(f"{field} must be a list of strings, not {names!r}")
    check_expressions((one[3:] for one in names if _is_expression(one)), field)
    return tuple(names)


def _matches(module: str, target: str) -> bool:
    if _is_class(target):
        return (target == "Embedding") == is_embedding(module)
    return matches_name(module, target)


def _is_name(target: str) -> bool:
    return not _is_expression(target) and not _is_class(target)


def _is_expression(target: str) -> bool:
    return target.startswith("re:")


def _is_class(target: str) -> bool:
    return target in _CLASSES
