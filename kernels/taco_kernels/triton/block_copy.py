"""Copies whole KV blocks between memories, for the host tier and moves on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

VECTOR_BYTES = 16  # sizes and addresses of blocks are multiples of it
# 16 KiB per program and iteration: each of its 128 threads has eight vectors in flight.
_VECTORS = 1024
# Host memory is accessed over a link that this many programs saturate (512 KiB in flight). More
# would only wait, on multiprocessors that the model could use.
_LINK_PROGRAMS = 32


def copy_blocks(source: Tensor, target: Tensor, source_ids: Tensor, target_ids: Tensor) -> None:
    """Copy blocks: target[target_ids[i]] = source[source_ids[i]] for each i.

    Args:
        source, target: uint8 [num_blocks, block_bytes], block_bytes a multiple of 16: a block's KV
            of all layers. Each is on the device or in pinned host memory; they may be the same
            tensor if no block is both read and written.
        source_ids, target_ids: int64 [n] on the device; pairs with a -1 are skipped.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    _check(source, target, source_ids, target_ids)
    num_vectors = source.shape[1] // VECTOR_BYTES
    num_pieces = source_ids.shape[0] * triton.cdiv(num_vectors, _VECTORS)
    if num_pieces == 0:
        return
    crosses_link = "cpu" in (source.device.type, target.device.type)
    num_programs = min(num_pieces, _LINK_PROGRAMS) if crosses_link else num_pieces
    _copy_blocks_kernel[(num_programs,)](
        source.view(torch.int32),
        target.view(torch.int32),
        source_ids,
        target_ids,
        num_pieces,
        num_vectors,
        source.stride(0) // VECTOR_BYTES,
        target.stride(0) // VECTOR_BYTES,
        VECTORS=_VECTORS,
        num_warps=4,
    )


def _check(source: Tensor, target: Tensor, source_ids: Tensor, target_ids: Tensor) -> None:
    for name, blocks in (("source", source), ("target", target)):
        if (
            blocks.dtype != torch.uint8
            or blocks.dim() != 2
            or blocks.shape[1] != source.shape[1]
            or blocks.shape[1] % VECTOR_BYTES
            or blocks.stride(0) % VECTOR_BYTES
            or blocks.stride(1) != 1
            or blocks.data_ptr() % VECTOR_BYTES
        ):
            raise ValueError(
                f"{name} must be uint8 [num_blocks, block_bytes], block_bytes and its place in "
                f"memory multiples of {VECTOR_BYTES} and the same for both, not {blocks.dtype} "
                f"{list(blocks.shape)} with strides {blocks.stride()}"
            )
    for name, ids in (("source_ids", source_ids), ("target_ids", target_ids)):
        if ids.dtype != torch.int64 or ids.shape != source_ids.shape or ids.stride() != (1,):
            raise ValueError(
                f"{name} must be int64 [n], as long as the other ids, not {ids.dtype} "
                f"{list(ids.shape)} with strides {ids.stride()}"
            )


@triton.jit(do_not_specialize=["num_pieces"])  # differs from call to call
def _copy_blocks_kernel(
    source,
    target,
    source_ids,
    target_ids,
    num_pieces,
    num_vectors,
    source_stride,
    target_stride,
    VECTORS: tl.constexpr,
):
    """Strides are in vectors of four words, so that the compiler knows their alignment."""
    pieces_a_block = tl.cdiv(num_vectors, VECTORS)
    for piece in range(tl.program_id(0), num_pieces, tl.num_programs(0)):
        source_id = tl.load(source_ids + piece // pieces_a_block)
        target_id = tl.load(target_ids + piece // pieces_a_block)
        if (source_id >= 0) & (target_id >= 0):
            vectors = piece % pieces_a_block * VECTORS + tl.arange(0, VECTORS)[:, None]
            words = tl.arange(0, 4)[None, :]
            mask = (vectors < num_vectors) & (words < 4)
            copied = tl.load(source + (source_id * source_stride + vectors) * 4 + words, mask=mask)
            tl.store(target + (target_id * target_stride + vectors) * 4 + words, copied, mask=mask)
