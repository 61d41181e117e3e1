"""Packs the matrices of a checkpoint while the process imports torch. Does not import torch."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from taco_kernels.cpu.structs import MATRIX_TYPES, TENSOR_TYPES, Packing
from taco_kernels.library import load
from taco_kernels.native.cores import available_cores
from taco_kernels.native.mapped_memory import EarlyMemory, touch
from taco_kernels.panels import PANEL, HalfRows, halves, matrix_bytes, num_panels, panel_bytes
from taco_proto.config import WorkerConfig
from taco_worker.backends.cpu.lowered_ops import MatrixType
from taco_worker.backends.cpu.lowering import lower_plan
from taco_worker.backends.cpu.matrix_types import matrix_types
from taco_worker.models.config import ModelConfig
from taco_worker.models.mistral_format import is_mistral_file
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.models.plan.parameters import Fill
from taco_worker.models.weight_files import find_weight_files
from taco_worker.models.weight_sources import WeightSources
from taco_worker.quant.registry import stored_as
from taco_worker.quant.safetensors_header import IndexedTensor, read_safetensors_header

logger = logging.getLogger("taco.worker")

_ITEM_SIZES: dict[MatrixType, int] = {"f32": 4, "bf16": 2, "i8": 1}
# Between two batches the thread needs the interpreter's lock, which may take 5 ms.
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix W [n, k], and the addresses of its panels and of its `column_arrays`."""

    n: int
    k: int
    type: MatrixType
    is_gated: bool
    panels: int
    scales: int | None
    column_sums: int | None

    def packing(self, tensor: IndexedTensor, rows: HalfRows, source: int) -> Packing:
        """Packs rows of a half: those of a tensor from the address `source` on."""
        column = rows.half * PANEL
        panels = self.panels + rows.half * panel_bytes(_ITEM_SIZES[self.type], self.k)
        return Packing(
            TENSOR_TYPES[tensor.dtype],
            source,
            rows.end - rows.begin,
            self.k,
            self.k,
            MATRIX_TYPES[self.type],
            rows.first,
            2 if self.is_gated else 1,
            panels,
            None if self.scales is None else self.scales + 4 * column,
            None if self.column_sums is None else self.column_sums + 4 * column,
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a tensor that fills a parameter from row `start` on.

    Attributes:
        num_rows_packed: of the tensor, after this piece.
        content: the mapped file.
        place: bytes of the file where the rows are, begin and end.
    """

    packing: Packing
    parameter: str
    start: int
    num_rows_packed: int
    content: mmap.mmap
    place: tuple[int, int]

    @property
    def num_bytes(self) -> int:
        return self.place[1] - self.place[0]

    def release(self) -> None:
        """Give back the whole pages of the rows, which are packed and would be there twice."""
        begin = -(-self.place[0] // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.place[1] - begin >= mmap.PAGESIZE:
            self.content.madvise(mmap.MADV_DONTNEED, begin, self.place[1] - begin)


class EarlyWeights:
    """Memory for a model's matrices, and those that a thread has packed into it.

    The thread packs rows that safetensors files store as they are. `CpuWeights` packs the others,
    and what the thread has not reached. Where the checkpoint has codes, or weights are random, the
    thread only touches the memory.

    Attributes:
        memory: of the matrices.
        instruction_set: that has packed matrices; empty if no matrix is packed.
        places: by parameter, where its matrix begins in `memory`; complete after `close`.
        column_arrays: of the int8 matrices among them, as `WeightMatrix` has them.
        num_placed_bytes: of the matrices with places, which are at the beginning of `memory`.
    """

    def __init__(
        self, config: WorkerConfig, model: ModelConfig, number_type: MatrixType, num_bytes: int
    ) -> None:
        """Starts the thread.

        Args:
            number_type: of the matrices that are not quantized.
            num_bytes: about what all matrices take.

        Raises:
            MemoryError: the system cannot map it.
        """
        self.instruction_set = ""
        self.places: dict[str, int] = {}
        self.column_arrays: dict[str, dict[str, npt.NDArray[Any]]] = {}
        self.num_placed_bytes = 0
        self._num_rows: dict[tuple[str, int], int] = {}
        self._num_threads = config.num_threads
        self._model = model
        self._types = matrix_types(
            model.plan,
            number_type,
            stored_as(config.model.quantization),
            quantizes_lm_head=config.model.quantize_lm_head,
        )
        is_random = model.files.load_format == "dummy"
        write = touch if is_random or model.has_codes else self._write
        self.memory = EarlyMemory(num_bytes, num_bytes // 16, write)

    def close(self) -> None:
        """End the thread."""
        self.memory.close()

    def fits(self, instruction_set: str, types: Mapping[str, MatrixType], num_bytes: int) -> bool:
        """Whether the memory is enough, and its packed matrices are for these kernels and types.

        Ends the thread.

        Args:
            num_bytes: of all matrices.
        """
        self.close()
        return self.memory.holds(num_bytes) and (
            not self.instruction_set
            or (
                self.instruction_set == instruction_set
                and all(self._types[name] == types[name] for name in self.places)
            )
        )

    def num_packed_rows(self, parameter: str, start: int) -> int:
        """How many rows of a tensor are packed that fills the parameter from row `start` on."""
        return self._num_rows.get((parameter, start), 0)

    def _write(self, address: int, num_bytes: int) -> Iterator[None]:
        """Pack matrices into memory of zeros, and touch the rest; pause between pieces."""
        try:
            yield from self._pack_files(address, num_bytes)
        except Exception:  # the worker meets it again, and reports it
            logger.debug("the other matrices are not packed early", exc_info=True)
        yield from touch(address + self.num_placed_bytes, num_bytes - self.num_placed_bytes)

    def _pack_files(self, address: int, num_bytes: int) -> Iterator[None]:
        # The import of torch takes one core.
        kernels = load(max(1, available_cores().num_threads(self._num_threads) - 1))
        self.instruction_set = kernels.isa
        for batch in _batches(self._pieces(address, num_bytes)):
            packings = (Packing * len(batch))(*(piece.packing for piece in batch))
            kernels.lib.taco_pack(kernels.pool, packings, len(batch))
            for piece in batch:
                self._num_rows[piece.parameter, piece.start] = piece.num_rows_packed
                piece.release()
            yield

    def _pieces(self, address: int, num_bytes: int) -> Iterator[_Piece]:
        """The pieces to pack, in the order of the files."""
        plan = self._model.plan
        ops = chain(plan.ops, plan.logits)
        weights = {op.weight for op in ops if isinstance(op, Linear)}
        # A checkpoint may have the tensors of several layouts; the worker takes the last one.
        weights = {name for name in weights if len(plan.parameters[name].layouts) == 1}
        gated = lower_plan(plan, self._types).gated
        sources = WeightSources(plan)
        for file in find_weight_files(self._model.files):
            if file.suffix != ".safetensors" or is_mistral_file(file):
                continue
            content = _map_file(file)
            for name, tensor in _tensors_in_order(file):
                for fill in sources.fills.get(sources.canonical(name) or "", []):
                    if fill.parameter in weights and _is_stored_as_rows(fill, tensor):
                        is_gated = fill.parameter in gated
                        if self._place(fill.parameter, is_gated, num_bytes):
                            matrix = self._matrix(fill.parameter, is_gated, address)
                            yield from _cut(content, tensor, fill, matrix)

    def _place(self, parameter: str, is_gated: bool, num_bytes: int) -> bool:
        """Give a matrix its place; False if it does not fit into the first `num_bytes`."""
        if parameter in self.places:
            return True
        n, k = self._model.plan.parameters[parameter].shape
        type_ = self._types[parameter]
        size = matrix_bytes(n, k, _ITEM_SIZES[type_], gated=is_gated)
        if self.num_placed_bytes + size > num_bytes:
            return False
        if type_ == "i8":
            columns = num_panels(n, gated=is_gated) * PANEL
            self.column_arrays[parameter] = {
                "scales": np.zeros(columns, np.float32),
                "sums": np.zeros(columns, np.int32),
            }
        self.places[parameter] = self.num_placed_bytes
        self.num_placed_bytes += size
        return True

    def _matrix(self, parameter: str, is_gated: bool, address: int) -> _Matrix:
        n, k = self._model.plan.parameters[parameter].shape
        arrays = self.column_arrays.get(parameter, {})
        scales, sums = (
            arrays[name].ctypes.data if name in arrays else None for name in ("scales", "sums")
        )
        place = address + self.places[parameter]
        return _Matrix(n, k, self._types[parameter], is_gated, place, scales, sums)


def _cut(
    content: mmap.mmap, tensor: IndexedTensor, fill: Fill, matrix: _Matrix
) -> Iterator[_Piece]:
    """Cut a tensor's rows into pieces."""
    count, k = tensor.shape
    if k != matrix.k or fill.start + count > matrix.n:
        return  # the worker rejects the tensor
    row_bytes = (tensor.end - tensor.start) // count
    file = np.frombuffer(content, np.uint8).ctypes.data
    step = max(PANEL, _BATCH_BYTES // row_bytes)
    for done in range(0, count, step):
        size = min(step, count - done)
        for rows in halves(matrix.n, fill.start + done, size, gated=matrix.is_gated):
            begin, end = (tensor.start + (done + row) * row_bytes for row in (rows.begin, rows.end))
            packing = matrix.packing(tensor, rows, file + begin)
            last = done + rows.end
            yield _Piece(packing, fill.parameter, fill.start, last, content, (begin, end))


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Collect pieces into batches of `_BATCH_BYTES` or more."""
    batch: list[_Piece] = []
    for piece in pieces:
        batch.append(piece)
        if sum(one.num_bytes for one in batch) >= _BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def _map_file(file: Path) -> mmap.mmap:
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _tensors_in_order(file: Path) -> list[tuple[str, IndexedTensor]]:
    """The tensors of a safetensors file, by their place in it."""
    tensors = read_safetensors_header(file).tensors
    return sorted(tensors.items(), key=lambda item: item[1].start)


def _is_stored_as_rows(fill: Fill, tensor: IndexedTensor) -> bool:
    """Whether a tensor's numbers are rows of a matrix as they are."""
    return (
        fill.matrix is None
        and fill.expert is None
        and not fill.views
        and len(tensor.shape) == 2
        and tensor.end > tensor.start
        and tensor.dtype in TENSOR_TYPES
        and fill.fits(tensor.shape)
    )
