"""Writes matrices as bitsandbytes 0.50 stores them, by bitsandbytes itself on a CPU."""

import bitsandbytes.functional as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from torch import Tensor


def pack_4bit(
    weight: Tensor,
    kind: str = "nf4",
    block_size: int = 64,
    *,
    nested: bool = False,
    storage: torch.dtype = torch.uint8,
) -> dict[str, Tensor]:
    """The tensors of a matrix by suffix."""
    codes, state = bnb.quantize_4bit(
        weight,
        blocksize=block_size,
        compress_statistics=nested,
        quant_type=kind,
        quant_storage=storage,
    )
    parts = {f".weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    return {".weight": codes, **parts}


@torch.compiler.set_stance("force_eager")  # compiling takes minutes
def unpack_4bit(tensors: dict[str, Tensor], n: int, k: int) -> Tensor:
    """The matrix as bitsandbytes reads it, float32 [n, k]."""
    parts = {name: part for name, part in tensors.items() if name != ".weight"}
    state = bnb.QuantState.from_dict(dict(parts), device=torch.device("cpu"))
    absmax = state.absmax
    if state.nested:
        absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
    codes = tensors[".weight"].view(torch.uint8)
    if k % state.blocksize == 0:
        return torch.ops.bitsandbytes.dequantize_4bit.default(
            codes, absmax, state.blocksize, state.quant_type, (n, k), torch.float32
        )
    # The CPU kernel restarts blocks at each row, which the writer does not: the portable code.
    return _dequantize_4bit_compute(
        codes.flatten(), absmax, state.code, state.blocksize, (n, k), torch.float32
    )


def pack_int8(weight: Tensor) -> dict[str, Tensor]:
    codes, scales, _ = bnb.int8_vectorwise_quant(weight)
    order = torch.tensor(0, dtype=torch.uint8)
    return {".weight": codes, ".SCB": scales, ".weight_format": order}
