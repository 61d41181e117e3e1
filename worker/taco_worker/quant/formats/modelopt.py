"""NVIDIA's Model Optimizer: FP8, NVFP4 and MXFP8.

Its settings are `quantization_config` of config.json, or the file hf_quant_config.json. Scales of
activations (`input_scale`) are not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from taco_worker.quant.encodings.fp4_matrix import NVFP4_GROUP, Fp4Matrix
from taco_worker.quant.encodings.scaled_matrix import FLOAT_SCALES, POWER_SCALES, ScaledMatrix
from taco_worker.quant.modules import check_listed, is_embedding, is_listed, plain_name
from taco_worker.quant.stored_headers import StoredHeaders, read_headers
from taco_worker.quant.weight_format import Shape, WeightFormat

_FP8, _FP8_ROWS, _FP8_BLOCKS = "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"
_NVFP4, _NVFP4_WEIGHTS, _MXFP8 = "NVFP4", "W4A16_NVFP4", "MXFP8"
_ALGORITHMS = (_FP8, _FP8_ROWS, _FP8_BLOCKS, _NVFP4, _NVFP4_WEIGHTS, _MXFP8)
_MIXED = "MIXED_PRECISION"
_BLOCK = 128
_WILDCARDS, _MAX_PATTERNS = frozenset("*?["), 10_000
_MXFP8_GROUP = 32
_WEIGHT, _SCALE, _MATRIX_SCALE = ".weight", ".weight_scale", ".weight_scale_2"
_EXTRA = (
    ".input_scale",
    ".output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    "_bmm_quantizer._amax",
)


@dataclass(frozen=True, slots=True)
class ModelOptCheckpoint:
    """A checkpoint of Model Optimizer.

    Attributes:
        algorithm: of modules that `by_module` does not name; None: these are not quantized.
        by_module: algorithms of modules, and of the modules in them.
        excluded: names, and parts of names.
        patterns: with wildcards, of further excluded modules.
        nvfp4_group: columns that share a scale.
    """

    algorithm: str | None
    by_module: Mapping[str, str]
    excluded: tuple[str, ...]
    patterns: tuple[str, ...]
    nvfp4_group: int
    headers: StoredHeaders

    @property
    def method(self) -> str:
        used = {self.algorithm, *self.by_module.values()}
        return "modelopt_fp4" if used & {_NVFP4, _NVFP4_WEIGHTS} else "modelopt"

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        weight = module + _WEIGHT
        algorithm = self._algorithm_of(module)
        is_included = algorithm is not None and not self._is_excluded(module)
        otherwise = is_included and not is_embedding(module)
        if not self.headers.is_quantized(weight, otherwise=otherwise):
            return None
        if algorithm is None:
            raise ValueError(f"{weight} is {self.headers.dtype(weight)}, not in quantized_layers")
        return self._matrix(algorithm, module, n, k)

    def is_extra(self, name: str) -> bool:
        return name.endswith(_EXTRA)

    def _matrix(self, algorithm: str, module: str, n: int, k: int) -> WeightFormat:
        stored = self.headers.shape(module + _SCALE)
        if algorithm in (_NVFP4, _NVFP4_WEIGHTS):
            if k % self.nvfp4_group:
                raise ValueError(
                    f"{module}: group_size {self.nvfp4_group} does not divide {k} columns"
                )
            whole = () if self.headers.shape(module + _MATRIX_SCALE) != (1,) else (1,)
            return Fp4Matrix(n, k, self.nvfp4_group, _WEIGHT, _SCALE, _MATRIX_SCALE, whole)
        shape: Shape
        dtypes: tuple[str, ...] = FLOAT_SCALES
        if algorithm == _FP8_ROWS:
            rows, group, shape = 1, k, stored if stored == (n, 1) else (n,)
        elif algorithm == _FP8_BLOCKS:
            rows = group = _BLOCK
            down, across = -(-n // rows), -(-k // group)
            flat = (down, across)
            shape = flat if stored == flat else (down, 1, across, 1)
        elif algorithm == _MXFP8:
            if k % _MXFP8_GROUP:
                raise ValueError(f"{module}: groups of {_MXFP8_GROUP} do not divide {k} columns")
            rows, group, shape, dtypes = 1, _MXFP8_GROUP, (n, k // _MXFP8_GROUP), POWER_SCALES
        else:
            rows, group, shape = n, k, (1,) if stored == (1,) else ()
        return ScaledMatrix(n, k, "e4m3", rows, group, shape, scale_dtypes=dtypes)

    def _is_excluded(self, module: str) -> bool:
        return is_listed(module, self.excluded) or any(_fits(module, one) for one in self.patterns)

    def _algorithm_of(self, module: str) -> str | None:
        for name, algorithm in self.by_module.items():
            if plain_name(module) == plain_name(name) or _fits(module, name):
                return algorithm
            if plain_name(module).startswith(f"{plain_name(name)}."):
                return algorithm
        return self.algorithm


def read(config: Mapping[str, Any], model_dir: Path) -> ModelOptCheckpoint:
    """The quantization of a checkpoint.

    Args:
        config: as config.json or hf_quant_config.json has it.

    Raises:
        ValueError: a setting is invalid or not supported.
    """
    settings = config.get("quantization", config)
    if not isinstance(settings, Mapping):
        raise ValueError(f"quantization must be an object, not {settings!r}")
    excluded = settings.get("exclude_modules", settings.get("ignore")) or []
    if not isinstance(excluded, list) or not all(isinstance(one, str) for one in excluded):
        raise ValueError(f"exclude_modules must be a list of strings, not {excluded!r}")
    names = tuple(one for one in excluded if "*" not in one)
    check_listed(names, "exclude_modules")
    patterns = tuple(one for one in excluded if not _WILDCARDS.isdisjoint(one))
    if len(patterns) > _MAX_PATTERNS:
        raise ValueError(f"exclude_modules has more than {_MAX_PATTERNS} names with wildcards")
    group = settings.get("group_size") or NVFP4_GROUP
    if type(group) is not int or group < 2 or group % 2:
        raise ValueError(f"group_size must be an even positive integer, not {group!r}")
    algorithm = _algorithm(settings.get("quant_algo"), (*_ALGORITHMS, _MIXED))
    by_module = settings.get("quantized_layers") or {}
    if not isinstance(by_module, Mapping) or (algorithm == _MIXED and not by_module):
        raise ValueError(f"quant_algo {_MIXED} needs quantized_layers by name, not {by_module!r}")
    return ModelOptCheckpoint(
        None if algorithm == _MIXED else algorithm,
        {name: _algorithm_of_entry(name, entry) for name, entry in by_module.items()},
        names,
        patterns,
        group,
        read_headers(model_dir),
    )


def _algorithm_of_entry(name: str, entry: Any) -> str:
    if not isinstance(entry, Mapping):
        raise ValueError(f"quantized_layers: {name} must be an object, not {entry!r}")
    return _algorithm(entry.get("quant_algo"), _ALGORITHMS)


def _algorithm(name: Any, known: tuple[str, ...]) -> str:
    if not isinstance(name, str) or name.upper() not in known:
        raise ValueError(f"quant_algo {name!r} is not supported; supported: {', '.join(known)}")
    return name.upper()


def _fits(module: str, pattern: str) -> bool:
    """Whether a pattern with wildcards fits a module's name."""
    return fnmatchcase(module, pattern) or fnmatchcase(plain_name(module), plain_name(pattern))
