"""The CPU kernels under test, of each instruction set that can be tested here."""

import ctypes
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from taco_kernels import build
from taco_kernels.library import CpuKernels, load_library

EMULATED_LIBRARY = Path(__file__).parents[2] / "build" / "kernels" / "libtaco_kernels_emulated.so"

# By what Linux says of the CPU, since the library is not built yet when tests are collected.
_FLAG_OF_ISA = {
    "avx2": "avx2",
    "avx512": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx": "amx_bf16",
}
_CPU_FLAGS = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
NATIVE = tuple(isa for isa, flag in _FLAG_OF_ISA.items() if flag in _CPU_FLAGS)

# Where the CPU has a set, kernels are tested with its instructions. Emulating them would prove the
# emulation alone, and the library of all three takes minutes to compile.
_EMULATES_ALL = os.environ.get("TACO_TEST_EMULATED") == "all"
EMULATED_SETS = tuple(
    isa
    for isa in build.EMULATED_SETS
    if _EMULATES_ALL or isa.name.removeprefix("emulated_") not in NATIVE
)
EMULATED = tuple(isa.name for isa in EMULATED_SETS)
# The set with tiles that a test can have.
WITH_TILES = "amx" if "amx" in NATIVE else "emulated_amx"


@cache
def built_library(*, emulated: bool) -> Path:
    """The library of the native sets or of EMULATED, built from the sources as they are."""
    output, sets = (
        (EMULATED_LIBRARY, EMULATED_SETS) if emulated else (build.LIBRARY, build.NATIVE_SETS)
    )
    built = build.build(output, sets)
    assert not built.skipped_sets, built.skipped_sets
    return built.library


@cache
def _library(*, emulated: bool) -> ctypes.CDLL:
    return load_library(built_library(emulated=emulated))


@cache
def kernels_of(isa: str, num_threads: int) -> CpuKernels:
    """The kernels of one instruction set; all tests share the pool of each size."""
    return CpuKernels(_library(emulated=isa in EMULATED), isa, num_threads)


def decode_int8(operands: Tensor, kernels: CpuKernels) -> Tensor:
    """Whole numbers, float32 [count, padded k]; see `encode_i8` of the instruction sets."""
    if kernels.int8_operand_bytes == 2:  # four in the order 0, 2, 1, 3
        operands = operands.unflatten(1, (-1, 4))[..., [0, 2, 1, 3]].flatten(1)
    elif kernels.isa.endswith(("avx512", "avx512_bf16")):  # unsigned, 128 encodes 0
        operands = operands.view(torch.uint8).int() - 128
    return operands.float()
