"""FP8: e4m3 matrices, with scales of tensors, rows or blocks; also made at load.

Writers are AutoFP8, transformers and DeepSeek V3 (128 x 128 blocks). Static scales of activations
are not needed: products quantize activations dynamically, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taco_worker.quant.encodings.scaled_matrix import FLOAT_SCALES, POWER_SCALES, ScaledMatrix
from taco_worker.quant.modules import check_listed, is_linear, is_listed
from taco_worker.quant.stored_headers import StoredHeaders, read_headers
from taco_worker.quant.weight_format import CodeLayout, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

METHOD = "fp8"
_STACKED = (".experts.gate_up_proj", ".experts.down_proj")  # names of tensors, without ".weight"
_FORMATS = (None, "e4m3", "e4m3fn", "float8_e4m3fn")
_BLOCK = (128, 128)  # of settings that do not say it
_EXTRA = (
    "input_scale",
    "input_scale_ub",
    "activation_scale",
    "output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".prob_scale",
)
_LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class Fp8Checkpoint:
    """A checkpoint with e4m3 matrices.

    Attributes:
        excluded: modules that are not quantized, as `is_listed` takes them.
        block: rows and columns that share a scale; None: a tensor or a row has one.
        has_row_scales: rows have scales where the files' headers do not tell.
    """

    method: str
    excluded: tuple[str, ...]
    block: tuple[int, int] | None
    headers: StoredHeaders
    has_row_scales: bool = False

    def format_of(self, module: str, n: int, k: int) -> ScaledMatrix | None:
        weight = "" if module.endswith(_STACKED) else ".weight"
        otherwise = is_linear(module) and not is_listed(module, self.excluded)
        if not self.headers.is_quantized(module + weight, otherwise=otherwise):
            return None
        scale, stored = self._stored_scale(module, weight)
        rows, group, shape = self._shared(n, k, scale, stored)
        dtypes = (*FLOAT_SCALES, *POWER_SCALES)
        return ScaledMatrix(n, k, "e4m3", rows, group, shape, weight, scale, dtypes)

    def is_extra(self, name: str) -> bool:
        return name.endswith(_EXTRA)

    def _shared(self, n: int, k: int, scale: str, stored: Shape | None) -> tuple[int, int, Shape]:
        """Rows and columns that share a scale, and the shape of the scales."""
        if self.block is not None:
            return *self.block, _grid(n, k, self.block)
        if stored in ((n,), (n, 1)) or (stored is None and self.has_row_scales):
            return 1, k, stored or (n, 1)
        is_default = scale.endswith("_inv") and stored == _grid(n, k, _BLOCK)
        if is_default and stored != (1, 1):
            return *_BLOCK, _grid(n, k, _BLOCK)
        return n, k, stored if stored in ((1,), (1, 1)) else ()

    def _stored_scale(self, module: str, weight: str) -> tuple[str, Shape | None]:
        """The suffix of the scales, and their shape (of one expert) if headers tell it."""
        suffixes = [f"{weight}_scale", f"{weight}_scale_inv"]
        if self.block is not None:
            suffixes.reverse()
        for suffix in suffixes:
            shape = self.headers.shape(module + suffix)
            if shape is not None:
                return suffix, shape if weight else shape[1:]
        return suffixes[0], None


def read(config: Mapping[str, Any], model_dir: Path) -> Fp8Checkpoint:
    """The quantization of a checkpoint.

    Raises:
        ValueError: a setting is invalid or not supported.
    """
    scheme = config.get("activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        raise ValueError(f"activation_scheme must be dynamic or static, not {scheme!r}")
    if config.get("fmt") not in _FORMATS:
        raise ValueError(f"fmt {config['fmt']!r} is not supported; 'e4m3' is")
    if config.get("scale_fmt") not in (None, "float", "ue8m0"):
        raise ValueError(f"scale_fmt must be float or ue8m0, not {config['scale_fmt']!r}")
    if config.get("expert_dtype", "fp8") != "fp8":
        raise ValueError(f"expert_dtype {config['expert_dtype']!r} is not supported; 'fp8' is")
    block = config.get("weight_block_size")
    return Fp8Checkpoint(
        METHOD,
        excluded_modules(config),
        None if block is None else _checked_block(block),
        read_headers(model_dir),
    )


def excluded_modules(config: Mapping[str, Any]) -> tuple[str, ...]:
    """`modules_to_not_convert`, or `ignored_layers` of AutoFP8.

    Raises:
        ValueError: it is no list of names.
    """
    for field in ("modules_to_not_convert", "ignored_layers"):
        names = config.get(field)
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{field} must be a list of strings, not {names!r}")
        check_listed(names, field)
        return tuple(names)
    return ()


def _grid(n: int, k: int, block: tuple[int, int]) -> Shape:
    return -(-n // block[0]), -(-k // block[1])


def _checked_block(block: Any) -> tuple[int, int]:
    sizes = list(block) if isinstance(block, list | tuple) else []
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"weight_block_size must be two positive integers, not {block!r}")
    return sizes[0], sizes[1]


@dataclass(frozen=True, slots=True)
class OnlineFp8:
    """Makes e4m3 numbers of the matrices of linear layers, with a scale for each matrix.

    LM heads, embeddings and routers stay as they are stored.
    """

    method = METHOD

    def layout_of(self, module: str, n: int, k: int) -> CodeLayout | None:
        return CodeLayout("e4m3", k) if is_linear(module) else None

    def quantize(self, rows: Tensor) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes

        numbers = rows.float()
        largest = numbers.abs().amax()
        if not bool(largest.isfinite()):
            raise ValueError("the matrix has NaNs or infinite numbers")
        scale = torch.where(largest > 0, largest / _LARGEST, 1.0)
        floats = (numbers / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
        n, k = rows.shape
        return GroupCodes("e4m3", floats.view(torch.uint8), k, scale.expand(n, 1).contiguous())


def online() -> OnlineFp8:
    return OnlineFp8()
