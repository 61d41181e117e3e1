"""A matrix of which some rows are quantized codes, as a torch module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from taco_kernels.code_packing import can_join, join, pack
from taco_kernels.group_codes import GroupCodes
from taco_kernels.packed_codes import PackedCodes, PackedExperts

Product = Callable[[Tensor, PackedCodes, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class CodedRows:
    """Rows [start, start + count) of a matrix, as codes or as numbers [count, k]."""

    start: int
    count: int
    rows: PackedCodes | Tensor


class CodedWeight(nn.Module):
    """A parameter [n, k], or [num_experts, n, k], whose rows are put as codes or as numbers.

    The rows of experts follow each other. Rows are kept as they come until the last one is there:
    then adjacent rows of equal layouts become one matrix, which needs only one launch.
    """

    def __init__(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`: of rows that are no codes."""
        super().__init__()
        self.shape = shape
        self.parts: tuple[CodedRows, ...] = ()
        self._dtype, self._device = dtype, device
        self._num_rows = shape[0] * shape[1] if len(shape) == 3 else shape[0]
        self._pieces: dict[int, GroupCodes | Tensor] = {}

    def put(self, start: int, rows: GroupCodes | Tensor, expert: int | None) -> None:
        """Store rows from row `start`, of an expert if the parameter has them."""
        if expert is not None:
            start += expert * self.shape[1]
        if isinstance(rows, Tensor):  # a copy: it may be a view of a file
            rows = rows.to(self._device, self._dtype, copy=True)
        self._pieces[start] = rows
        if sum(piece.shape[0] for piece in self._pieces.values()) == self._num_rows:
            self._pack()

    @property
    def experts(self) -> PackedExperts | Tensor | None:
        """The matrices of experts; None: they are several matrices."""
        if len(self.parts) != 1:
            return None
        rows = self.parts[0].rows
        if isinstance(rows, PackedCodes):
            return PackedExperts(rows, self.shape[0])
        return rows.view(self.shape)

    def dequantize(self) -> None:
        """Keep numbers instead of codes."""
        rows = [
            part.rows if isinstance(part.rows, Tensor) else part.rows.values().to(self._dtype)
            for part in self.parts
        ]
        for name, _ in list(self.named_parameters()):
            delattr(self, name)
        kept = self._keep("rows_0", torch.cat(rows))
        self.parts = (CodedRows(0, self._num_rows, kept),)

    def forward(self, x: Tensor, bias: Tensor | None, product: Product) -> Tensor:
        """x W^T + b; `product` computes it for rows of codes."""
        outputs = []
        for part in self.parts:
            own = None if bias is None else bias[part.start : part.start + part.count]
            if isinstance(part.rows, PackedCodes):
                outputs.append(product(x, part.rows, own))
            else:
                outputs.append(nn.functional.linear(x, part.rows, own))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _pack(self) -> None:
        pieces = sorted(self._pieces.items())
        self._pieces = {}
        runs: list[list[tuple[int, GroupCodes | Tensor]]] = []
        for start, piece in pieces:
            if not (runs and _are_one(runs[-1][-1][1], piece)):
                runs.append([])
            runs[-1].append((start, piece))
        parts = []
        for index, run in enumerate(runs):
            rows = self._packed(index, [piece for _, piece in run])
            parts.append(CodedRows(run[0][0], sum(piece.shape[0] for _, piece in run), rows))
        self.parts = tuple(parts)

    def _packed(self, index: int, run: list[GroupCodes | Tensor]) -> PackedCodes | Tensor:
        """The rows of a run, on the device, as parameters of this module."""
        codes = [piece for piece in run if isinstance(piece, GroupCodes)]
        if codes:
            packed = pack(join(codes), self._device)
            return packed.map_tensors(lambda name, one: self._keep(f"{name}_{index}", one))
        numbers = [piece for piece in run if isinstance(piece, Tensor)]
        return self._keep(f"rows_{index}", torch.cat(numbers))

    def _keep(self, name: str, tensor: Tensor) -> Tensor:
        parameter = nn.Parameter(tensor, requires_grad=False)
        self.register_parameter(name, parameter)
        return parameter


def _are_one(first: GroupCodes | Tensor, second: GroupCodes | Tensor) -> bool:
    """Whether rows of both can be rows of one matrix."""
    if isinstance(first, GroupCodes) and isinstance(second, GroupCodes):
        return can_join(first, second)
    return isinstance(first, Tensor) and isinstance(second, Tensor)
