"""Writes loaded CPU weights to files, and maps them back without packing or copying matrices."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.column_order import ColumnOrder, order_from
from taco_kernels.cpu.packed_matrix import WeightMatrix
from taco_kernels.group_codes import GroupCodes
from taco_proto.config import ModelConfig as WantedModel
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.kv_scales.scale_names import scale_of
from taco_worker.models.code_segments import Segments
from taco_worker.models.converted.header import (
    CONVERT_AGAIN,
    PackedHeader,
    matrices_file,
    rest_file,
    write_header,
)
from taco_worker.models.converted.layouts import Layouts
from taco_worker.models.dtypes import dtype_name

# Names in the rest file: a kind, a parameter, and for rows their start and expert.
_ROWS, _TABLE, _COLUMNS, _ORDER = "rows", "table", "columns", "order"


class RowRecorder:
    """A `WeightSink` that passes all on, and keeps the rows of what is no matrix."""

    def __init__(self, weights: CpuWeights) -> None:
        self.dtype, self.device = weights.dtype, weights.device
        self.rows: dict[str, Tensor] = {}
        self._weights = weights
        self._others = weights.matrix_names | weights.table_names

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        if parameter not in self._others:
            number = "" if expert is None else expert
            self.rows[f"{_ROWS}:{parameter}:{start}:{number}"] = rows.clone()
        self._weights.put(parameter, start, rows, expert)

    def takes_codes(self, parameter: str) -> bool:
        return self._weights.takes_codes(parameter)

    def put_codes(self, parameter: str, start: int, codes: GroupCodes, expert: int | None) -> None:
        self._weights.put_codes(parameter, start, codes, expert)


def save_weights(
    weights: CpuWeights,
    recorder: RowRecorder,
    architecture: str,
    wanted: WantedModel,
    codes: Segments,
    scales: Mapping[str, Tensor],
    out: Path,
) -> None:
    """Write loaded weights into the directory `out`.

    Args:
        recorder: through which `weights` were loaded.
        wanted: the flags of the conversion.
        codes: with which `weights` were made.
        scales: of the KV cache, by their names in the checkpoint, which they keep.
    """
    rest = {**scales, **recorder.rows}
    for name, table in weights.tables.items():
        rest[f"{_TABLE}:{name}"] = table
    for name, matrix in _matrices(weights):
        rest |= {f"{_COLUMNS}:{name}:{part}": one for part, one in matrix.column_arrays.items()}
    for name, order in _orders(weights).items():
        rest[f"{_ORDER}:{name}"] = order.columns
    save_file({name: tensor.contiguous() for name, tensor in rest.items()}, rest_file(out))
    content = weights.memory
    with matrices_file(out).open("wb") as file:
        file.write(content.numpy().data)
    # safetensors makes files that only their owner reads. The others follow the umask.
    shutil.copymode(matrices_file(out), rest_file(out))
    header = PackedHeader(
        architecture,
        weights.instruction_set,
        weights.kernel_hash,
        dtype_name(weights.dtype),
        dtype_name(weights.matrix_dtype),
        wanted.quantization,
        wanted.quantized_activations,
        wanted.quantize_lm_head,
        sorted(weights.int8_activations),
        content.numel(),
        weights.matrix_starts(),
        codes,
        {
            name: one.stored_layouts
            for name, one in _matrices(weights)
            if isinstance(one, CodedMatrix)
        },
    )
    write_header(out, header)


def map_weights(
    weights: CpuWeights, architecture: str, model_dir: Path, header: PackedHeader
) -> None:
    """Fill `weights` from a converted directory; matrices are mapped.

    Args:
        header: of the directory; `weights` were made with its codes.

    Raises:
        ValueError: the files are damaged, or are for another model, instruction set, dtype or
            version.
    """
    header.check(
        architecture=architecture,
        instruction_set=weights.instruction_set,
        kernel_hash=weights.kernel_hash,
        dtype=dtype_name(weights.dtype),
        matrix_dtype=dtype_name(weights.matrix_dtype),
    )
    if set(header.matrices) != weights.matrix_names:
        raise ValueError(
            f"the converted weights do not fit: the model has other matrices; {CONVERT_AGAIN}"
        )
    rest = rest_file(model_dir)
    try:
        with safe_open(rest, framework="pt") as file:
            names = [name for name in file.keys() if scale_of(name) is None]  # noqa: SIM118
            tensors = {name: file.get_tensor(name) for name in names}
        _create(weights, header, tensors)
        if weights.matrix_starts() == header.matrices:
            _restore(weights, header.stored, tensors)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"cannot read {rest}: {error}; {CONVERT_AGAIN}") from None
    if weights.matrix_starts() != header.matrices or weights.memory.numel() != (
        header.num_matrix_bytes
    ):
        raise ValueError(
            "the converted weights do not fit: the model's matrices have other sizes; "
            f"{CONVERT_AGAIN}"
        )
    weights.map_memory(matrices_file(model_dir))


def _create(weights: CpuWeights, header: PackedHeader, tensors: dict[str, Tensor]) -> None:
    """Give the matrices their memory; removes the orders of their columns from `tensors`."""
    weights.restrict_int8_activations(frozenset(header.int8_activations))
    for name in header.matrices:
        columns = tensors.pop(f"{_ORDER}:{name}", None)
        weights.create_matrix(name, None if columns is None else order_from(columns))
        if columns is not None and name not in _orders(weights):
            raise ValueError(f"the columns of {name} have no order")


def _orders(weights: CpuWeights) -> dict[str, ColumnOrder]:
    return {
        name: matrix.column_order
        for name, matrix in weights.matrices.items()
        if isinstance(matrix, CodedMatrix) and matrix.column_order is not None
    }


def _restore(weights: CpuWeights, stored: Layouts, tensors: dict[str, Tensor]) -> None:
    _store_as(weights, stored)
    arrays: dict[str, dict[str, Tensor]] = {}
    for key in [key for key in tensors if key.startswith(f"{_COLUMNS}:")]:
        name, _, part = key.removeprefix(f"{_COLUMNS}:").rpartition(":")
        arrays.setdefault(name, {})[part] = tensors.pop(key)
    for name, matrix in _matrices(weights):
        matrix.restore(arrays.pop(name, {}))
    if arrays:
        raise ValueError(f"no matrix is {next(iter(arrays))!r:.100}")
    for key, tensor in tensors.items():
        kind, name, *place = key.split(":")
        if kind == _TABLE:
            weights.tables[name] = tensor
        else:
            start, expert = place
            weights.put(name, int(start), tensor, int(expert) if expert else None)


def _store_as(weights: CpuWeights, layouts: Layouts) -> None:
    coded = {name: one for name, one in _matrices(weights) if isinstance(one, CodedMatrix)}
    if coded.keys() != layouts.keys():
        raise ValueError("the matrices of codes are others")
    for name, matrix in coded.items():
        matrix.store_as(layouts[name])


def _matrices(weights: CpuWeights) -> Iterator[tuple[str, WeightMatrix]]:
    """All matrices by name, and those of experts with their numbers."""
    yield from weights.matrices.items()
    for name, experts in weights.experts.items():
        for number, matrix in enumerate(experts.matrices):
            yield f"{name}:{number}", matrix
