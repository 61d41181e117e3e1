"""Limits of the segments of k of a packed matrix. Free of torch: programs are lowered with them."""

MAX_SEGMENTS = 8  # csrc/matmul/matrix.h
TILE_K = 32  # columns of a tile step: 64 bytes of bf16
