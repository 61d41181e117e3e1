"""Chooses the instruction set of the CPU kernels: the best that this machine can run.

The library holds each kernel once per set, from AVX2 to AMX (csrc/dispatch/).
"""

import ctypes
from collections.abc import Mapping


class UnsupportedCpuError(Exception):
    """This machine lacks features of the instruction set."""


def instruction_set_names(lib: ctypes.CDLL) -> list[str]:
    """The instruction sets in the library, from the smallest to the best."""
    names: list[str] = []
    while name := lib.taco_isa_name(len(names)):
        names.append(name.decode())
    return names


def missing_cpu_features(lib: ctypes.CDLL) -> dict[str, str | None]:
    """The CPU feature that this machine lacks for each instruction set, or None if it can run."""
    names = instruction_set_names(lib)
    missing = [lib.taco_isa_missing_feature(index) for index in range(len(names))]
    return {
        name: feature.decode() if feature else None
        for name, feature in zip(names, missing, strict=True)
    }


def choose_instruction_set(missing: Mapping[str, str | None], wanted: str | None = None) -> str:
    """The best instruction set that this machine can run, or `wanted`.

    Args:
        missing: as from missing_cpu_features, from the smallest set to the best.

    Raises:
        UnsupportedCpuError: this machine can run no set, or not the wanted one.
        ValueError: the library has no set of that name.
    """
    if wanted is not None:
        if wanted not in missing:
            known = ", ".join(missing)
            raise ValueError(f"TACO_CPU_ISA={wanted} is no instruction set; there are {known}")
        if feature := missing[wanted]:
            raise UnsupportedCpuError(f"this machine cannot run {wanted}: it lacks {feature}")
        return wanted
    usable = [name for name, feature in missing.items() if feature is None]
    if not usable:
        lacking = next(iter(missing.values()))
        raise UnsupportedCpuError(f"the CPU kernels need AVX2: this machine lacks {lacking}")
    return usable[-1]
