"""Random matrices as aqlm stores them, and the package's formula for their numbers."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from taco_worker.quant.formats.aqlm import Scheme


def pack(n: int, k: int, scheme: Scheme, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(n + k)
    bits, size = scheme.bits, 2**scheme.bits
    shape = (n // scheme.rows, k // scheme.columns, scheme.num_codebooks)
    codes = torch.randint(size, shape, generator=generator)
    signed = codes - size * (codes >= size // 2)  # as aqlm's pack_int_data
    books = (scheme.num_codebooks, size, scheme.rows, scheme.columns)
    return {
        ".codes": signed.to(torch.int8 if bits <= 8 else torch.int16),
        ".codebooks": torch.randn(books, generator=generator).to(dtype),
        ".scales": torch.rand((n // scheme.rows, 1, 1, 1), generator=generator).to(dtype),
    }


def reference(tensors: Mapping[str, Tensor], bits: int) -> Tensor:
    """aqlm's formula (`aqlm.utils._dequantize_weight`), in float32."""
    codes = tensors[".codes"].long() % 2**bits
    books, scales = tensors[".codebooks"].float(), tensors[".scales"].float()
    count, size, rows, columns = books.shape
    flat = codes.flatten(0, 1) + torch.arange(0, count * size, size)
    sums = F.embedding_bag(flat, books.flatten(0, 1).flatten(1), mode="sum")
    grid = (*codes.shape[:2], rows, columns)
    parts = sums.view(grid) * scales
    return parts.swapaxes(1, 2).reshape(codes.shape[0] * rows, codes.shape[1] * columns)
