"""The instruction set that a machine gets, by the CPU features that it lacks."""

import pytest

from support.cpu_kernels import NATIVE, kernels_of
from taco_kernels import build
from taco_kernels.instruction_sets import (
    UnsupportedCpuError,
    choose_instruction_set,
    instruction_set_names,
    missing_cpu_features,
)


def test_best_supported_instruction_set_is_chosen() -> None:
    obstacles = {"avx2": None, "avx512": None, "amx": "AMX"}

    assert choose_instruction_set(obstacles) == "avx512"
    assert choose_instruction_set(obstacles, "avx2") == "avx2"
    assert choose_instruction_set({**obstacles, "amx": None}) == "amx"


def test_unsupported_machine_error_names_the_missing_feature() -> None:
    old = {"avx2": "AVX2", "amx": "AVX2"}

    with pytest.raises(UnsupportedCpuError, match="need AVX2: this machine lacks AVX2"):
        choose_instruction_set(old)
    with pytest.raises(UnsupportedCpuError, match="cannot run amx: it lacks AMX int8"):
        choose_instruction_set({"avx2": None, "amx": "AMX int8"}, "amx")
    with pytest.raises(ValueError, match=r"TACO_CPU_ISA=sse2 is no instruction set.* avx2, amx"):
        choose_instruction_set(old, "sse2")


def test_the_library_holds_all_sets_and_knows_this_machine() -> None:
    lib = kernels_of(NATIVE[0], 2).lib

    assert instruction_set_names(lib) == [isa.name for isa in build.NATIVE_SETS]
    usable = [name for name, obstacle in missing_cpu_features(lib).items() if obstacle is None]
    assert set(usable) <= set(NATIVE)
