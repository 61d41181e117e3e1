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


def quantize_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of each row, with outliers in 16 bits.

    An outlier is above eight times the row's mean magnitude. A row has at most 16, its greatest
    values; the scale is that of the other values.

    Returns:
        Whole float64 numbers [n, k], above 127 for outliers only, and float32 scales [n].
    """
    wide = x.float()
    magnitudes = wide.abs()
    greatest, columns = magnitudes.sort(dim=1, descending=True, stable=True)
    limits = 8 * magnitudes.mean(dim=1, keepdim=True)
    is_outlier = torch.zeros_like(wide, dtype=torch.bool)
    is_outlier.scatter_(1, columns[:, :16], greatest[:, :16] > limits)
    others = magnitudes.masked_fill(is_outlier, 0).amax(dim=1) / 127
    scales = torch.where(
        is_outlier.any(dim=1), torch.maximum(others, greatest[:, 0] / (127 * 254)), others
    )
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    return (wide / scales[:, None]).round().double(), scales


def int8_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W8A8: float x [m, k] and weight [n, k], bias [n] to float32 [m, n]."""
    rows, row_scales = quantize_activations(x)
    columns, column_scales = quantize_rows(weight)
    sums = rows @ columns.double().T  # exact
    out = sums.float() * (row_scales[:, None] * column_scales[None, :])
    return out if bias is None else out + bias.float()
