"""Reference of linear layers in float64, and in W8A8 with dynamically quantized activations."""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., k], weight [n, k], bias [n] to float64 [..., n]."""
    out = x.double() @ weight.double().T
    return out if bias is None else out + bias.double()


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of each row (LLM.int8(), Dettmers et al. 2022, section 2).

    Returns:
        int8 [n, k] and float32 scales [n]: the greatest absolute value of a row becomes 127.
    """
    wide = x.float()
    greatest = wide.abs().amax(dim=1)
    scales = torch.where(greatest == 0, torch.ones_like(greatest), greatest / 127)
    return (wide / scales[:, None]).round().clamp(-128, 127).to(torch.int8), scales


def int8_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W8A8: float x [m, k] and weight [n, k], bias [n] to float32 [m, n]."""
    rows, row_scales = quantize_rows(x)
    columns, column_scales = quantize_rows(weight)
    sums = rows.int() @ columns.int().T
    out = sums.float() * (row_scales[:, None] * column_scales[None, :])
    return out if bias is None else out + bias.float()
