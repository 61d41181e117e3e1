"""Reference of linear layers in float64, and with dynamically quantized activations: W8A8, and
matrices of group codes."""

import torch
from torch import Tensor

from taco_kernels.group_codes import GroupCodes


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

    An outlier is above eight times the row's mean magnitude; where more than 16 values are, above
    twelve times. A row has at most 16, its greatest values; the scale is that of the other values.

    Returns:
        Whole float64 numbers [n, k], above 127 for outliers only, and float32 scales [n].
    """
    wide = x.float()
    magnitudes = wide.abs()
    greatest, columns = magnitudes.sort(dim=1, descending=True, stable=True)
    means = magnitudes.mean(dim=1, keepdim=True)
    has_long_tail = (magnitudes > 8 * means).sum(dim=1, keepdim=True) > 16
    limits = torch.where(has_long_tail, 12, 8) * means
    is_outlier = torch.zeros_like(wide, dtype=torch.bool)
    is_outlier.scatter_(1, columns[:, :16], greatest[:, :16] > limits)
    others = magnitudes.masked_fill(is_outlier, 0).amax(dim=1) / 127
    scales = torch.where(
        is_outlier.any(dim=1), torch.maximum(others, greatest[:, 0] / (127 * 254)), others
    )
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    scales = scales.clamp_min(torch.finfo(torch.float32).tiny)
    return (wide * (1 / scales)[:, None]).round().double(), scales


def int8_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W8A8: float x [m, k] and weight [n, k], bias [n] to float32 [m, n]."""
    rows, row_scales = quantize_activations(x)
    columns, column_scales = quantize_rows(weight)
    sums = rows @ columns.double().T  # exact
    out = sums.float() * (row_scales[:, None] * column_scales[None, :])
    return out if bias is None else out + bias.float()


def coded_linear(
    low: Tensor, high: Tensor, scales: Tensor, codes: GroupCodes, bias: Tensor | None = None
) -> Tensor:
    """Group codes, 4-bit or 8-bit, times int8 activations.

    Sums of whole numbers are exact over a group of columns; groups are added in float32 by rising
    columns, each with one rounding, and so are the products of outliers, positive ones first.
    Minima follow the scaled sum of their group, with another rounding.

    Args:
        low, high: whole numbers [m, k]; a row of activations is (low + 254 * high) * its scale,
            with high 0 except for outliers.
        scales: float32 [m].

    Returns:
        float32 [m, n].
    """
    n, k = codes.shape
    groups = torch.arange(k) // codes.group
    numbers = codes.code_bytes().double()
    if codes.zeros is not None:
        numbers = numbers - codes.zeros[:, groups].double()
    sums = torch.zeros(low.shape[0], n)
    for group in range(codes.scales.shape[1]):
        columns = slice(group * codes.group, (group + 1) * codes.group)
        exact = low[:, columns].double() @ numbers[:, columns].T
        sums = _fma(exact.float(), codes.scales[:, group].expand_as(sums), sums)
        if codes.minima is not None:
            factors = -low[:, columns].double().sum(1, keepdim=True).float()
            minima = codes.minima[:, group].expand_as(sums)
            sums = _fma(factors.expand_as(sums), minima, sums)
    for row in torch.nonzero(high.any(dim=1)).flatten().tolist():
        outliers = torch.zeros(n)
        positive, negative = (
            torch.nonzero(is_apart).flatten().tolist()
            for is_apart in (high[row] > 0, high[row] < 0)
        )
        for column in positive + negative:
            products = (high[row, column] * numbers[:, column]).float()
            outliers = _fma(products, codes.scales[:, groups[column]], outliers)
            if codes.minima is not None:
                factors = (-high[row, column]).float().expand(n)
                outliers = _fma(factors, codes.minima[:, groups[column]], outliers)
        sums[row] = _fma(outliers, torch.full_like(outliers, 254), sums[row])
    out = sums * scales[:, None]
    return out if bias is None else out + bias.float()


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of float32, rounded once.

    The sum is rounded to odd in float64, which makes the second rounding exact (Boldo and
    Melquiond, Emulation of a FMA and correctly rounded sums, 2008).
    """
    product, addend = a.double() * b.double(), c.double()  # the product is exact
    total = product + addend
    rest = total - product
    error = (product - (total - rest)) + (addend - rest)
    is_even = total.view(torch.int64) % 2 == 0
    toward = torch.where(error > 0, torch.inf, -torch.inf).double()
    odd = torch.where((error != 0) & is_even, torch.nextafter(total, toward), total)
    return odd.float()
