"""`--quantization experts_int8`: the matrices of experts become int8 at load, nothing else does.

As vLLM's method of this name: a scale for each row of an expert's matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taco_worker.quant.weight_format import CodeLayout

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_LARGEST = 127
# Parts of module names under which checkpoints store experts.
_EXPERTS = frozenset({"experts"})
_GRANITE = (".block_sparse_moe.input_linear", ".block_sparse_moe.output_linear")


class ExpertsInt8:
    """Rounds the rows of experts' matrices to int8."""

    method = "experts_int8"

    def layout_of(self, module: str, n: int, k: int) -> CodeLayout | None:
        is_expert = not _EXPERTS.isdisjoint(module.split(".")) or module.endswith(_GRANITE)
        return CodeLayout("int8", k) if is_expert else None

    def quantize(self, rows: Tensor) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes

        numbers = rows.float()
        largest = numbers.abs().amax(dim=1, keepdim=True)
        if not bool(largest.isfinite().all()):
            raise ValueError("numbers are not finite")
        scales = largest / _LARGEST
        divisors = scales.masked_fill(scales == 0, 1)
        codes = (numbers / divisors).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
        return GroupCodes("int8", codes, rows.shape[1], scales)


def online() -> ExpertsInt8:
    return ExpertsInt8()
