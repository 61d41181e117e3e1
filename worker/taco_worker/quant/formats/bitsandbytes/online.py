"""`--quantization bitsandbytes` of an unquantized checkpoint: NF4 in blocks of 64, at load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taco_worker.quant.formats.bitsandbytes.blocks import NF4, group_of
from taco_worker.quant.modules import is_linear
from taco_worker.quant.weight_format import CodeLayout

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_BLOCK_SIZE = 64
_SMALLEST = 1e-38  # what bitsandbytes divides by in a block of zeros


class OnlineNf4:
    """Rounds matrices as `bitsandbytes.functional.quantize_4bit` does on a CPU, to the same bits.

    Scales stay float32: nested scales would save 0.4 bits of 4.5 a weight, and round once more.
    """

    method = "bitsandbytes"

    def layout_of(self, module: str, n: int, k: int) -> CodeLayout | None:
        group = group_of(k, _BLOCK_SIZE) if is_linear(module) else None
        return None if group is None else CodeLayout("table16", group)

    def quantize(self, rows: Tensor) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes

        n, k = rows.shape
        flat = rows.float().flatten()
        size = flat.numel()
        blocks = torch.nn.functional.pad(flat, (0, -size % _BLOCK_SIZE)).view(-1, _BLOCK_SIZE)
        scales = blocks.abs().amax(dim=1)
        if not bool(scales.isfinite().all()):
            raise ValueError("numbers are not finite")
        inverse = 1 / scales.clamp(min=_SMALLEST)[:, None]
        normal = (blocks * inverse).clamp(-1, 1)
        if size % _BLOCK_SIZE:  # bitsandbytes divides in the last, shorter block
            scales[-1] = scales[-1].clamp(min=_SMALLEST)
            normal[-1] = (blocks[-1] / scales[-1]).clamp(-1, 1)
        table = torch.tensor(NF4)
        midpoints = (table[:-1] + table[1:]) / 2
        codes = torch.bucketize(normal, midpoints).to(torch.uint8).flatten()[:size]
        group = group_of(k, _BLOCK_SIZE)
        assert group is not None
        owners = torch.arange(0, size, group) // _BLOCK_SIZE
        return GroupCodes(
            "table16", codes.view(n, k), group, scales[owners].view(n, -1), table=table
        )


def online() -> OnlineNf4:
    return OnlineNf4()
