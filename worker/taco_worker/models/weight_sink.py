"""Where loaded weights go: implemented by each back end."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from taco_kernels.group_codes import GroupCodes


class WeightSink(Protocol):
    """Receives parameters, whole or some rows at a time, in any order.

    Attributes:
        dtype, device: of random weights. A GPU makes billions of them in a second, a CPU in
            minutes.
    """

    dtype: torch.dtype
    device: torch.device

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        """Store `rows` into the parameter from row `start`; they may be views of a file.

        Args:
            expert: index on the parameter's first axis, if that is one of experts.
        """
        ...

    def takes_codes(self, parameter: str) -> bool:
        """Whether the parameter keeps the codes of quantized matrices."""
        ...

    def put_codes(self, parameter: str, start: int, codes: GroupCodes, expert: int | None) -> None:
        """Store the rows with these codes, as `put`."""
        ...
