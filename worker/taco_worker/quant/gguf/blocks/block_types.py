"""The types of tensors in GGUF files, by their numbers.

A row of a quantized tensor is a sequence of blocks; a block stores some columns with their scales.
Source: `ggml_type` and the block structures of ggml (`ggml.h`, `ggml-common.h`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from taco_worker.quant.weight_format import CodeLayout

if TYPE_CHECKING:
    from taco_kernels.code_layout import ScaleType, StepType
    from taco_kernels.group_codes import CodeKind


@dataclass(frozen=True, slots=True)
class PlainType:
    """Numbers without scales.

    Attributes:
        dtype: the type's name in safetensors headers.
        size: bytes of a number.
    """

    name: str
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class BlockType:
    """Numbers in blocks.

    Attributes:
        columns: of a block.
        size: bytes of a block.
        layout: of the codes of a matrix.
    """

    name: str
    columns: int
    size: int
    layout: CodeLayout


def _blocks(
    name: str,
    columns: int,
    size: int,
    kind: CodeKind,
    group: int,
    *,
    zero: int | None = None,
    minima: bool = False,
    scales: ScaleType = "F16",
    steps: StepType | None = None,
    bits: int = 8,
) -> BlockType:
    """Args: steps: of the groups' scales in the unit of their block; bits: as of a CodeLayout."""
    layout = CodeLayout(
        kind,
        group,
        has_zeros=zero is not None,
        has_minima=minima,
        zero=zero,
        scale_type=scales,
        step_type=steps,
        groups_per_unit=0 if steps is None else columns // group,
        bits=bits,
    )
    return BlockType(name, columns, size, layout)


PLAIN_TYPES: Mapping[int, PlainType] = MappingProxyType(
    {
        0: PlainType("F32", "F32", 4),
        1: PlainType("F16", "F16", 2),
        30: PlainType("BF16", "BF16", 2),
    }
)
BLOCK_TYPES: Mapping[int, BlockType] = MappingProxyType(
    {
        2: _blocks("Q4_0", 32, 18, "int4", 32, zero=8),
        3: _blocks("Q4_1", 32, 20, "int4", 32, minima=True),
        6: _blocks("Q5_0", 32, 22, "int8", 32, bits=5),
        7: _blocks("Q5_1", 32, 24, "int8", 32, minima=True, bits=5),
        8: _blocks("Q8_0", 32, 34, "int8", 32),
        10: _blocks("Q2_K", 256, 84, "int4", 16, minima=True, steps="U8"),
        11: _blocks("Q3_K", 256, 110, "int4", 16, zero=4, steps="I8"),
        12: _blocks("Q4_K", 256, 144, "int4", 32, minima=True, steps="U8"),
        13: _blocks("Q5_K", 256, 176, "int8", 32, minima=True, steps="U8", bits=5),
        14: _blocks("Q6_K", 256, 210, "int8", 16, steps="I8", bits=6),
        15: _blocks("Q8_K", 256, 292, "int8", 256, scales="F32"),
        16: _blocks("IQ2_XXS", 256, 66, "int8", 32, scales="F32"),
        17: _blocks("IQ2_XS", 256, 74, "int8", 16, scales="F32"),
        18: _blocks("IQ3_XXS", 256, 98, "int8", 32, scales="F32"),
        19: _blocks("IQ1_S", 256, 50, "int8", 32, scales="F32"),
        20: _blocks("IQ4_NL", 32, 18, "table16", 32),
        21: _blocks("IQ3_S", 256, 110, "int8", 32, scales="F32"),
        22: _blocks("IQ2_S", 256, 82, "int8", 16, scales="F32"),
        23: _blocks("IQ4_XS", 256, 136, "table16", 32, steps="I8"),
        29: _blocks("IQ1_M", 256, 56, "int8", 16, scales="F32"),
        34: _blocks("TQ1_0", 256, 54, "int4", 256, zero=1),
        35: _blocks("TQ2_0", 256, 66, "int4", 256, zero=1),
        39: _blocks("MXFP4", 32, 17, "table16", 32, scales="BF16"),
        40: _blocks("NVFP4", 64, 36, "table16", 16, scales="BF16"),
    }
)
# Types that ggml knows and that no published model stores weights in.
UNSUPPORTED_TYPES: Mapping[int, str] = MappingProxyType(
    {9: "Q8_1", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 41: "Q1_0", 42: "Q2_0"}
)
# Types of which ggml removed the layouts: most had the rows of another one repacked for ARM.
_REMOVED: Mapping[int, str] = MappingProxyType(
    {
        4: "Q4_2",
        5: "Q4_3",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
    }
)
# IQ2_K, IQ4_KS, Q4_K_R4 and others.
_OF_IK_LLAMA = range(96, 512)


def tensor_type(number: int) -> PlainType | BlockType:
    """Raises ValueError for a type that cannot be loaded; the message is the type's name."""
    found = PLAIN_TYPES.get(number) or BLOCK_TYPES.get(number)
    if found is not None:
        return found
    if number in UNSUPPORTED_TYPES:
        raise ValueError(f"type {UNSUPPORTED_TYPES[number]} is not supported")
    if number in _REMOVED:
        base = _REMOVED[number][: -len("_4_4")]
        advice = f": use a file of {base}" if number > 30 else ""
        raise ValueError(f"type {_REMOVED[number]} is no longer part of the format{advice}")
    if number in _OF_IK_LLAMA:
        raise ValueError(f"type {number} is one of ik_llama.cpp's own, which are not supported")
    raise ValueError(f"type {number} is unknown")
