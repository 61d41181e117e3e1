"""The values of all block types, against gguf-py's own reader."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from taco_worker.quant.gguf.blocks import matrix as blocks_of_matrix
from taco_worker.quant.gguf.blocks.block_types import BLOCK_TYPES, BlockType, tensor_type
from taco_worker.quant.gguf.blocks.matrix import SUFFIX, GgufMatrix

_TYPES = sorted(BLOCK_TYPES.values(), key=lambda one: one.name)
# Bytes of a block's float16 numbers, whose exponents random bytes would make infinite.
_HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}


def random_blocks(kind: BlockType, n: int, blocks: int, seed: int) -> np.ndarray:
    """uint8 [n, blocks * kind.size] with finite scales."""
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, (n, blocks, kind.size), dtype=np.uint8)
    for start in _HALVES.get(kind.name, ()):
        data[..., start + 1] &= 0xBF  # exponents of at most 15: below 2
    if kind.name == "Q8_K":
        data[..., 3] &= 0xBF
    if kind.name == "IQ1_M":  # the exponent's top bits are in the last of its four words
        data[..., 55] &= 0xBF
    if kind.name == "MXFP4":
        data[..., 0] %= 250
    return data.reshape(n, -1)


def _values(kind: BlockType, data: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    n, size = data.shape
    matrix = GgufMatrix(kind, n, size // kind.size * kind.columns)
    stored = {SUFFIX: torch.from_numpy(data)}
    codes = matrix.codes(stored)
    layout = matrix.layout
    assert (codes.kind, codes.group) == (layout.kind, layout.group)
    assert (codes.zeros is not None) == layout.has_zeros
    assert (codes.minima is not None) == layout.has_minima
    assert codes.kind != "int4" or int(codes.codes.max()) <= 15
    return matrix.dequantize(stored), codes.values()


@pytest.mark.parametrize("kind", _TYPES, ids=lambda kind: kind.name)
@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_values_of_random_blocks_are_those_of_gguf_py(
    kind: BlockType, n: int, blocks: int, seed: int
) -> None:
    data = random_blocks(kind, n, blocks, seed)
    values, of_codes = _values(kind, data)
    assert torch.equal(values.view(torch.int32), of_codes.view(torch.int32))
    if kind.name == "Q8_K":  # gguf-py has no reader of it
        split = data.reshape(n, blocks, kind.size)
        scales = np.ascontiguousarray(split[..., :4]).view(np.float32)
        wanted = (split[..., 4:260].view(np.int8) * scales).reshape(n, -1)
    else:
        wanted = dequantize(data, GGMLQuantizationType[kind.name])
    assert values.numpy().tobytes() == np.ascontiguousarray(wanted, np.float32).tobytes()


@pytest.mark.parametrize(
    "name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]
)
def test_values_of_quantized_matrices_are_those_of_gguf_py(name: str) -> None:
    kind = tensor_type(GGMLQuantizationType[name])
    assert isinstance(kind, BlockType)
    matrix = np.random.default_rng(1).standard_normal((8, 512)).astype(np.float32)
    data = quantize(matrix, GGMLQuantizationType[name])
    values, _ = _values(kind, data)
    assert values.numpy().tobytes() == dequantize(data, GGMLQuantizationType[name]).tobytes()
    assert np.corrcoef(values.numpy().ravel(), matrix.ravel())[0, 1] > 0.6


def test_types_have_the_sizes_of_gguf_py() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    for number, kind in BLOCK_TYPES.items():
        assert GGMLQuantizationType(number).name == kind.name
        assert GGML_QUANT_SIZES[GGMLQuantizationType(number)] == (kind.columns, kind.size)
        assert kind.columns % kind.layout.group == 0


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "IQ1_M", "MXFP4"])
def test_scales_that_are_not_finite_are_refused(name: str) -> None:
    kind = tensor_type(GGMLQuantizationType[name])
    assert isinstance(kind, BlockType)
    data = random_blocks(kind, 2, 2, 0)
    data[1, -kind.size :] = 0xFF  # NaN in float16, and the exponent of NaN in MXFP4
    matrix = GgufMatrix(kind, 2, 2 * kind.columns)
    with pytest.raises(ValueError, match=r"its scales are (not finite|too large)"):
        matrix.dequantize({SUFFIX: torch.from_numpy(data)})


def test_a_row_is_a_whole_number_of_blocks() -> None:
    kind = tensor_type(GGMLQuantizationType.Q4_K)
    assert isinstance(kind, BlockType)
    with pytest.raises(ValueError, match="Q4_K stores blocks of 256 columns, and the matrix has 3"):
        GgufMatrix(kind, 4, 300)


@pytest.mark.parametrize(
    ("number", "message"),
    [(28, "type F64 is not supported"), (4, "type Q4_2 is no longer"), (77, "type 77 is unknown")],
)
def test_types_without_matrices_are_refused_by_name(number: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tensor_type(number)


@pytest.mark.parametrize("kind", _TYPES, ids=lambda kind: kind.name)
def test_parts_of_the_rows_have_the_codes_of_all(
    kind: BlockType, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, k = 40, 2 * kind.columns
    monkeypatch.setattr(blocks_of_matrix, "_PART", 17 * k)
    stored = {SUFFIX: torch.from_numpy(random_blocks(kind, n, 2, 0))}
    matrix = GgufMatrix(kind, n, k)

    parts = list(matrix.codes_of_parts(stored))

    starts = [first for first, _ in parts]
    assert starts == ([0] if kind.layout.scale_type == "F32" else [0, 16, 32])
    values = torch.cat([codes.values() for _, codes in parts])
    assert torch.equal(values, matrix.dequantize(stored))
