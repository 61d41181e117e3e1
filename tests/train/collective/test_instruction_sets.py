"""Variants of the C++ library's kernels for instruction sets: each gives the bits of the others.

The dynamic linker chooses one variant for a processor. The tests call all that this processor has,
at the addresses that the library's symbol table names.
"""

import ctypes
import functools
import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from taco_train.collective import library
from taco_train.native.build import find

KERNEL = "void*, void const*, void const*, unsigned long"
DTYPES = {
    **{name: getattr(torch, name) for name in ("float32", "float64", "uint8", "int8")},
    **{name: getattr(torch, name) for name in ("int16", "int32", "int64")},
    "uint16": torch.int16,
    "uint32": torch.int32,
    "uint64": torch.int64,
    "either": torch.uint8,
    "both": torch.uint8,
}
# Below a vector, a whole block, and what is left over after vectors of every width.
COUNTS = (0, 1, 7, 4096, 4096 + 61)


class Candidates(ctypes.Structure):
    """std::vector of magnitudes and indices."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("limit", ctypes.c_void_p))


@functools.cache
def symbols() -> dict[str, int]:
    """Addresses in this process by the names of functions in C++."""
    table = subprocess.run(
        ["nm", "--demangle", find("collective")], capture_output=True, text=True, check=True
    )
    offsets = {
        line.split(" ", 2)[2]: int(line.split(" ", 2)[0], 16)
        for line in table.stdout.splitlines()
        if not line.startswith(" ")
    }
    exported = ctypes.cast(library.load().taco_collective_reduce, ctypes.c_void_p).value
    assert exported is not None
    base = exported - offsets["taco_collective_reduce"]
    return {name: base + offset for name, offset in offsets.items()}


def variants(function: str, arguments: str) -> dict[str, int]:
    """Addresses of a function by instruction set, of those that this processor has."""
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    pattern = re.compile(
        rf"taco::collective::(\(anonymous namespace\)::)?{function}"
        rf"\({re.escape(arguments)}\) \[clone \.(default|avx2|avx512f)\]"
    )
    found = {
        match[2]: address
        for name, address in symbols().items()
        if (match := pattern.fullmatch(name))
    }
    assert set(found) == {"default", "avx2", "avx512f"}
    return {name: found[name] for name in found if name == "default" or name in flags}


def kernels() -> list[str]:
    pattern = re.compile(rf".*::(\w+)\({re.escape(KERNEL)}\) \[clone \.default\]")
    return sorted({match[1] for name in symbols() if (match := pattern.fullmatch(name))})


def numbers(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Random bits; floats are no NaN, whose bits depend on the order of operands."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    random = torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8)
    values = random.view(dtype)
    return values.nan_to_num(1.5) if dtype.is_floating_point else values


def is_equal(left: Tensor, right: Tensor) -> bool:
    """Whether the bits are the same; any NaN is equal to any other."""
    if left.dtype.is_floating_point:
        assert torch.equal(left.isnan(), right.isnan())
        left, right = left.nan_to_num(1.5), right.nan_to_num(1.5)
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def test_every_reduction_has_variants() -> None:
    """Sums, products, minima and maxima of all types, and of booleans."""
    names = {name.partition("_")[0] for name in kernels()}
    assert names == {"sum", "product", "minimum", "maximum", "either", "both"}
    assert len(kernels()) == 28


@pytest.mark.parametrize("count", COUNTS)
def test_reductions(count: int) -> None:
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_size_t)
    for name in kernels():
        dtype = DTYPES[name.rpartition("_")[2]]
        left, right = numbers(count, dtype, 1), numbers(count, dtype, 2)
        results = []
        for address in variants(name, KERNEL).values():
            out = torch.zeros(count, dtype=dtype)
            call(address)(out.data_ptr(), left.data_ptr(), right.data_ptr(), count)
            results.append(out)
        assert all(is_equal(result, results[0]) for result in results), name


@pytest.mark.parametrize("count", COUNTS)
def test_divisions(count: int) -> None:
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float)
    results = []
    for address in variants("divide_floats", "float*, unsigned long, float").values():
        values = numbers(count, torch.float32, 3)
        call(address)(values.data_ptr(), count, 3.0)
        results.append(values)
    assert all(is_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("count", COUNTS)
def test_conversions_of_bfloat16(count: int) -> None:
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    narrow, wide = numbers(count, torch.bfloat16, 4), numbers(count, torch.float32, 5)
    for name, arguments, source, dtype in (
        ("float32_from_bfloat16", "float*, unsigned short const*", narrow, torch.float32),
        ("bfloat16_from_float32", "unsigned short*, float const*", wide, torch.bfloat16),
    ):
        results = []
        for address in variants(name, f"{arguments}, unsigned long").values():
            out = torch.zeros(count, dtype=dtype)
            call(address)(out.data_ptr(), source.data_ptr(), count)
            results.append(out)
        assert all(is_equal(result, results[0]) for result in results), name


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("has_momentum", [False, True])
def test_what_top_k_keeps(count: int, has_momentum: bool) -> None:
    call = ctypes.CFUNCTYPE(
        None, *[ctypes.c_void_p] * 2, ctypes.c_float, ctypes.c_void_p, ctypes.c_size_t
    )
    gradient = torch.randn(count, generator=torch.Generator().manual_seed(6))
    results = []
    for address in variants(
        "accumulate", "float*, float*, float, float const*, unsigned long"
    ).values():
        generator = torch.Generator().manual_seed(7)
        residual, momentum = (torch.randn(count, generator=generator) for _ in range(2))
        kept = momentum.data_ptr() if has_momentum else None
        call(address)(residual.data_ptr(), kept, 0.9, gradient.data_ptr(), count)
        results.append(torch.cat([residual, momentum]))
    assert all(is_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("count", COUNTS)
def test_candidates_of_top_k(count: int) -> None:
    arguments = next(
        re.split(r"find_candidates\(|\) \[clone", name)[1]
        for name in symbols()
        if "find_candidates(" in name and "[clone .default]" in name
    )
    call = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.POINTER(Candidates)
    )
    values = torch.randn(count, generator=torch.Generator().manual_seed(8))
    threshold = 0x40000000  # of magnitudes from 2.0
    expected = values.abs().ge(2.0).nonzero().flatten().tolist()
    for address in variants("find_candidates", arguments).values():
        found = Candidates()
        call(address)(values.data_ptr(), count, threshold, ctypes.byref(found))
        length = ((found.end or 0) - (found.begin or 0)) // 4
        pairs = list((ctypes.c_uint32 * length).from_address(found.begin)) if found.begin else []
        assert pairs[1::2] == expected
        magnitudes = torch.tensor(pairs[::2], dtype=torch.int32).view(torch.float32)
        assert torch.equal(magnitudes, values.abs()[expected])
