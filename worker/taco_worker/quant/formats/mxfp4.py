"""MXFP4: 4-bit floats with a scale for 32 columns (OCP Microscaling Formats 1.0, section 6.3).

Checkpoints of gpt-oss store the matrices of their experts so. A number has a sign, 2 bits of
exponent and 1 of mantissa; a scale is a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taco_worker.quant.formats.fp8 import excluded_modules
from taco_worker.quant.modules import is_listed
from taco_worker.quant.stored_headers import StoredHeaders, read_headers
from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_GROUP = 32
_BLOCKS, _SCALES = "_blocks", "_scales"
_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")


def read(config: Mapping[str, Any], model_dir: Path) -> Mxfp4Experts:
    """The quantization of a checkpoint.

    Raises:
        ValueError: a setting is invalid.
    """
    return Mxfp4Experts(excluded_modules(config), read_headers(model_dir))


@dataclass(frozen=True, slots=True)
class Mxfp4Experts:
    """A checkpoint whose expert matrices are MXFP4.

    Attributes:
        excluded: modules that are not quantized, as `is_listed` takes them.
    """

    excluded: tuple[str, ...]
    headers: StoredHeaders
    method = "mxfp4"

    def format_of(self, module: str, n: int, k: int) -> Mxfp4Matrix | None:
        otherwise = module.endswith(_EXPERTS) and not is_listed(module, self.excluded)
        return Mxfp4Matrix(n, k) if self.headers.is_quantized(module, otherwise=otherwise) else None

    def is_extra(self, name: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Mxfp4Matrix:
    """A matrix [n, k] as codes [n, blocks, 16], the even column in a byte's low bits.

    A row's last block may have more columns than the row.
    """

    n: int
    k: int

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        num_blocks = -(-self.k // _GROUP)
        return {
            _BLOCKS: StoredTensor((self.n, num_blocks, _GROUP // 2), ("U8",)),
            _SCALES: StoredTensor((self.n, num_blocks), ("U8",)),
        }

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout("table16", min(_GROUP, self.k), scale_type="F8_E8M0")

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.encodings.small_floats import E2M1, decode_scales, unpack_nibbles

        codes = unpack_nibbles(tensors[_BLOCKS]).flatten(1)[:, : self.k]
        scales = decode_scales("scales", tensors[_SCALES])
        return GroupCodes("table16", codes, self.layout.group, scales, table=torch.tensor(E2M1))
