"""The CPU kernels under test, of each instruction set that can be tested here."""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from taco_kernels import build
from taco_kernels.library import CpuKernels, load_library

EMULATED_LIBRARY = Path(__file__).parents[2] / "build" / "kernels" / "libtaco_kernels_emulated.so"
EMULATED = tuple(isa.name for isa in build.EMULATED_SETS)

# By what Linux says of the CPU, since the library is not built yet when tests are collected.
_FLAG_OF_ISA = {
    "avx2": "avx2",
    "avx512": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx": "amx_bf16",
}
_CPU_FLAGS = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
NATIVE = tuple(isa for isa, flag in _FLAG_OF_ISA.items() if flag in _CPU_FLAGS)


@cache
def _library(emulated: bool) -> ctypes.CDLL:
    """Built from the sources as they are."""
    if not emulated:
        built = build.build()
        assert not built.skipped_sets, built.skipped_sets
        return load_library()
    return load_library(build.build(EMULATED_LIBRARY, build.EMULATED_SETS).library)


@cache
def kernels_of(isa: str, num_threads: int) -> CpuKernels:
    """The kernels of one instruction set; all tests share the pool of each size."""
    return CpuKernels(_library(isa in EMULATED), isa, num_threads)


def decode_int8(operands: Tensor, kernels: CpuKernels) -> Tensor:
    """Whole numbers, float32 [count, padded k]; see `encode_quad` of the instruction sets."""
    if kernels.int8_operand_bytes == 2:  # four in the order 0, 2, 1, 3
        operands = operands.unflatten(1, (-1, 4))[..., [0, 2, 1, 3]].flatten(1)
    elif kernels.isa.endswith(("avx512", "avx512_bf16")):  # unsigned, 128 encodes 0
        operands = operands.view(torch.uint8).int() - 128
    return operands.float()
