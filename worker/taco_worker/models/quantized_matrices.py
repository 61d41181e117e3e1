"""Decodes the matrices of quantized checkpoints, and quantizes those of others at load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from taco_kernels.group_codes import GroupCodes
from taco_worker.models.mapped_pages import MappedPages
from taco_worker.models.plan.exact_parameters import exact_parameters
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Fill
from taco_worker.models.weight_sink import WeightSink
from taco_worker.quant.weight_format import FormatOfRows, OnlineQuantization


class QuantizedMatrices:
    """Collects the tensors of matrices, and stores the rows of those that are complete."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, str, int | None], _Parts] = {}
        self._pages: dict[Path, MappedPages] = {}  # of the latest file

    def add(
        self, sink: WeightSink, fills: Iterable[Fill], name: str, tensor: Tensor, file: Path
    ) -> None:
        """Take a tensor of a file for its fills; those without a quantized matrix are ignored.

        Raises:
            ValueError: values of a matrix's tensors are invalid; the message names the module, and
                the files of its tensors.
        """
        of_matrices: dict[tuple[int, str, int | None], list[Fill]] = {}
        for fill in fills:
            if fill.matrix is not None:
                key = (id(sink), fill.matrix.module, fill.matrix.expert)
                of_matrices.setdefault(key, []).append(fill)
        for key, fills_of_one in of_matrices.items():
            if key not in self._waiting:
                self._waiting[key] = _Parts(sink, fills_of_one)
            parts = self._waiting[key]
            parts.add(name, tensor, file, self._pages_of(file))
            if parts.is_complete:
                del self._waiting[key]  # its tensors are views of files
                parts.store()

    def _pages_of(self, file: Path) -> MappedPages:
        if file not in self._pages:
            self._pages = {file: MappedPages(file)}
        return self._pages[file]

    def finish(self) -> None:
        """Store the matrices that lack nothing but optional tensors.

        Raises:
            ValueError: as `add`.
        """
        for parts in self._waiting.values():
            parts.store()
        self._waiting.clear()


class _Parts:
    """The tensors of one matrix that have been read, and the rows that it fills."""

    def __init__(self, sink: WeightSink, fills: Sequence[Fill]) -> None:
        matrix = fills[0].matrix
        assert matrix is not None
        self._sink = sink
        self._fills = fills
        self._matrix = matrix
        self._suffixes = {name: suffix for suffix, name in matrix.names.items()}
        self._tensors: dict[str, Tensor] = {}
        self._files: dict[Path, None] = {}
        self._pages: list[tuple[MappedPages, Tensor]] = []

    def add(self, name: str, tensor: Tensor, file: Path, pages: MappedPages) -> None:
        part = tensor if self._matrix.expert is None else tensor[self._matrix.expert]
        self._pages.append((pages, part))
        self._tensors[self._suffixes[name]] = part
        self._files[file] = None

    @property
    def is_complete(self) -> bool:
        return len(self._tensors) == len(self._suffixes)

    def store(self) -> None:
        format_ = self._matrix.format
        keeps_codes = [
            format_.layout is not None
            and fill.selects_rows
            and self._sink.takes_codes(fill.parameter)
            for fill in self._fills
        ]
        kept = [fill for fill, keeps in zip(self._fills, keeps_codes, strict=True) if keeps]
        for first, codes in self._codes(kept):
            for fill in kept:
                rows = codes.map_rows(fill.viewed)
                self._sink.put_codes(fill.parameter, fill.start + first, rows, fill.expert)
        values = None if all(keeps_codes) else self._values()
        for fill, keeps in zip(self._fills, keeps_codes, strict=True):
            if not keeps:
                viewed: Tensor = fill.viewed(values)
                self._sink.put(fill.parameter, fill.start, viewed, fill.expert)
        for pages, tensor in self._pages:
            pages.release(tensor)  # it was read again

    def _codes(self, fills: Sequence[Fill]) -> Iterator[tuple[int, GroupCodes]]:
        """Codes of parts of the matrix's rows for these fills, with the first row of each."""
        format_ = self._matrix.format
        if not fills:
            return
        with self._named_errors():
            if isinstance(format_, FormatOfRows) and not any(fill.views for fill in fills):
                yield from format_.codes_of_parts(self._tensors)
            else:
                yield 0, format_.codes(self._tensors)

    def _values(self) -> Tensor:
        with self._named_errors():
            return self._matrix.format.dequantize(self._tensors)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Adds the module, and the files of its tensors, to the message of a ValueError."""
        try:
            yield
        except ValueError as error:
            expert = "" if self._matrix.expert is None else f" (expert {self._matrix.expert})"
            files = ", ".join(map(str, self._files))
            raise ValueError(f"{files}: {self._matrix.module}{expert}: {error}") from None


class QuantizingSink:
    """Quantizes the rows of matrices before it passes them on.

    Rows of a sink that keeps no codes get the values of their codes.
    """

    def __init__(self, sink: WeightSink, plan: ModelPlan, method: OnlineQuantization) -> None:
        self.dtype, self.device = sink.dtype, sink.device
        self._sink = sink
        self._method = method
        exact = exact_parameters(plan)
        self._modules = {
            (name, source.start): source.module
            for name, parameter in plan.parameters.items()
            if name not in exact
            for layout in parameter.layouts
            for source in layout
        }

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        module = self._modules.get((parameter, start))
        if rows.ndim != 2 or module is None or self._method.layout_of(module, *rows.shape) is None:
            self._sink.put(parameter, start, rows, expert)
            return
        try:
            codes = self._method.quantize(rows)
        except ValueError as error:
            raise ValueError(f"{module}: {error}") from None
        if self._sink.takes_codes(parameter):
            self._sink.put_codes(parameter, start, codes, expert)
        else:
            self._sink.put(parameter, start, codes.values(), expert)

    def takes_codes(self, parameter: str) -> bool:
        return self._sink.takes_codes(parameter)

    def put_codes(self, parameter: str, start: int, codes: GroupCodes, expert: int | None) -> None:
        self._sink.put_codes(parameter, start, codes, expert)
