"""`bench.kernels.codes` with small matrices, on each instruction set that can be tested here."""

import pytest
import torch

from bench.kernels import codes, matmul
from bench.kernels.matmul import Shape
from support.cpu_kernels import EMULATED, NATIVE, kernels_of

pytestmark = pytest.mark.kernels

SHAPES: list[Shape] = [(64, 256, "gate"), (32, 192, "add"), (48, 256, "store")]
INT8_ON_TILES = {"int8", "gptq", "awq"}  # groups of whole tiles, without steps and minima


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "COLD_BYTES", 100_000)
    monkeypatch.setattr(codes, "ROUND_SECONDS", 0.0)


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[2])
def test_each_format_is_measured_with_the_engines_operands(isa: str, shape: Shape) -> None:
    kernels = kernels_of(isa, 1)
    matrices = codes.matrices_by_format(kernels, shape, codes.FORMATS)
    lines = codes.measure(kernels, shape, matrices, rows=3, rounds=2, read=lambda: 1e9)
    assert [line["format"] for line in lines] == ["int8", *codes.FORMATS]
    assert lines[0]["of_int8"] == 1.0
    for line in lines:
        takes_int8 = not kernels.has_tiles or line["format"] in INT8_ON_TILES
        assert line["operands"] == ("int8" if takes_int8 else "bf16")
        assert float(line["us"]) > 0


def test_copies_exceed_the_caches() -> None:
    kernels = kernels_of(NATIVE[-1], 1)
    for copies in codes.matrices_by_format(kernels, SHAPES[0], codes.FORMATS).values():
        assert len({copy.struct.data or copy.struct.parts for copy in copies}) == len(copies)
        assert sum(copy.nbytes for copy in copies) > 80_000  # of the 100,000 that were asked for


def test_random_codes_use_their_range() -> None:
    torch.manual_seed(0)
    for name, first, last in (("gptq", 0, 15), ("q5_0", -16, 15), ("q6_k", -32, 31)):
        found = codes.random_codes(codes.FORMATS[name], 64, 512).codes
        assert (int(found.min()), int(found.max())) == (first, last)
