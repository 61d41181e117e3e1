"""TopK on a device, with torch's operations: selection, and messages of coded indices and values.

A message has a fixed length, so that nothing waits for the host: the values, then the gaps between
indices. A gap is one byte; 255 adds 255 to the gap that follows (about 1.4 bytes a value at 1%).
"""

from __future__ import annotations

import torch
from torch import Tensor

_ESCAPE = 255
_FLOAT16_MAX = 65504.0


def select(values: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest magnitudes, ascending; int64, on the same device."""
    return values.abs().topk(count, sorted=False).indices.sort().values


def encode(values: Tensor, indices: Tensor, *, as_float16: bool) -> tuple[Tensor, Tensor]:
    """The message, and the values as the receivers read them.

    Args:
        values: [size], float32.
        indices: [count], ascending.

    Returns:
        uint8, with 3 or 5 bytes for each of `count` and one for every 255 of `size`; and float32,
        [count]. What float16 cannot hold is cut off at its largest value.
    """
    chosen = values[indices]
    if as_float16:
        infinite = chosen.isinf()
        half = chosen.clamp(-_FLOAT16_MAX, _FLOAT16_MAX).where(~infinite, chosen).half()
        chosen, data = half.float(), half.view(torch.uint8)
    else:
        data = chosen.view(torch.uint8)
    gaps = torch.diff(indices, prepend=indices.new_full((1,), -1)) - 1
    ends = torch.cumsum(gaps // _ESCAPE + 1, 0) - 1
    coded = torch.full(
        (indices.numel() + values.numel() // _ESCAPE,),
        _ESCAPE,
        dtype=torch.uint8,
        device=values.device,
    )
    coded[ends] = (gaps % _ESCAPE).to(torch.uint8)
    return torch.cat([data, coded]), chosen


def add_decoded(message: Tensor, count: int, target: Tensor, *, as_float16: bool) -> None:
    """Adds the values of a message to `target`, [size], float32, in place."""
    num_bytes = count * (2 if as_float16 else 4)
    kind = torch.float16 if as_float16 else torch.float32
    chosen = message[:num_bytes].clone().view(kind).float()
    coded = message[num_bytes:].long()
    is_end = coded != _ESCAPE
    # An end adds its gap and 1, an escape adds 255; the first `count` ends are the indices.
    positions = torch.cumsum(coded + is_end, 0) - 1
    order = torch.cumsum(is_end, 0) - 1
    indices = positions.new_empty(count)
    # Bytes that are no end write to a slot behind, which is cut off.
    slots = torch.where(is_end, order, count)
    indices = torch.cat([indices, indices.new_empty(1)]).index_copy_(0, slots, positions)[:count]
    target.index_add_(0, indices, chosen)
