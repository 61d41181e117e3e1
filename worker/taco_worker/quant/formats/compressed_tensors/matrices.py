"""The tensors of a matrix that a scheme of compressed-tensors stores."""

from __future__ import annotations

from taco_worker.quant.encodings.fp4_matrix import Fp4Matrix
from taco_worker.quant.encodings.scaled_matrix import FLOAT_SCALES, POWER_SCALES, ScaledMatrix
from taco_worker.quant.formats.compressed_tensors.fp6_matrix import Fp6Matrix
from taco_worker.quant.formats.compressed_tensors.packed_matrix import PackedMatrix
from taco_worker.quant.formats.compressed_tensors.weight_scheme import WeightScheme
from taco_worker.quant.stored_headers import StoredHeaders
from taco_worker.quant.weight_format import Shape, WeightFormat

_PACKED, _SCALE = ".weight_packed", ".weight_scale"


def matrix(
    scheme: WeightScheme, module: str, n: int, k: int, headers: StoredHeaders
) -> WeightFormat:
    """The format of a module's matrix [n, k].

    Raises:
        ValueError: its groups do not divide its columns.
    """
    rows, columns = _shared(scheme, n, k)
    if scheme.group is not None and k % scheme.group:
        raise ValueError(f"{module}: group_size {scheme.group} does not divide {k} columns")
    whole = headers.shape(module + _SCALE)
    scale_shape: Shape = (-(-n // rows), -(-k // columns))
    if scheme.strategy == "tensor":
        scale_shape = () if whole == () else (1,)
    if scheme.format == "pack-quantized":
        return PackedMatrix(
            n,
            k,
            scheme.num_bits,
            columns,
            scale_shape,
            not scheme.is_symmetric,
            scheme.has_column_groups,
            headers.shape(f"{module}.weight_shape") in (None, (2,)),
        )
    if scheme.format == "mxfp6-pack-quantized":
        return Fp6Matrix(n, k)
    if scheme.num_bits == 4 and scheme.is_float:
        has_matrix_scale = scheme.strategy == "tensor_group"
        return Fp4Matrix(
            n,
            k,
            columns,
            _PACKED,
            matrix_scale=".weight_global_scale" if has_matrix_scale else None,
            divides=True,
        )
    return ScaledMatrix(
        n,
        k,
        "e4m3" if scheme.is_float else "int8",
        rows,
        columns,
        scale_shape,
        scale_dtypes=POWER_SCALES if scheme.format == "mxfp8-quantized" else FLOAT_SCALES,
        zero_point=None if scheme.is_symmetric else ".weight_zero_point",
    )


def _shared(scheme: WeightScheme, n: int, k: int) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    if scheme.block is not None:
        return scheme.block
    if scheme.strategy == "tensor":
        return n, k
    return 1, scheme.group or k
