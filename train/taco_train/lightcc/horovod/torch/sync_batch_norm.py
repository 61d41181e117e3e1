"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from taco_train.lightcc.horovod.ops import Sum
from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set
from taco_train.lightcc.horovod.torch.reductions import allreduce


class SyncBatchNorm(_BatchNorm):
    """As torch's BatchNorm layers; in training, mean and variance are those of all ranks.

    Input: [batch, channels, ...]; the batches of the ranks may differ in size.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - the name in torch
        if input.dim() < 2:
            raise ValueError(f"input has {input.dim()} dimensions; at least 2 are needed")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or (self.process_set.size() or 1) == 1:
            return super().forward(input)
        values = input.to(torch.promote_types(input.dtype, torch.float32))  # 16 bits lose too much
        mean, variance, count = self._statistics(values)
        if self.training and self.track_running_stats:
            self._update_running(mean.detach(), variance.detach(), count)
        shape = [1, -1, *[1] * (input.dim() - 2)]
        scaled = (input - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            scaled = scaled * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(input.dtype)

    def _statistics(self, values: Tensor) -> tuple[Tensor, Tensor, float]:
        """Mean and variance [channels] over all ranks, and the number of values of a channel.

        Deviations are added in a second step: sums of squares would cancel.
        """
        dimensions = [0, *range(2, values.dim())]
        own = values.new_tensor([values.numel() // values.shape[1]])
        sums = allreduce(
            torch.cat([values.sum(dimensions), own]), op=Sum, process_set=self.process_set
        )
        count = float(sums[-1])
        mean = sums[:-1] / count
        deviations = values - mean.view([1, -1, *[1] * (values.dim() - 2)])
        squares = allreduce(
            (deviations * deviations).sum(dimensions), op=Sum, process_set=self.process_set
        )
        return mean, squares / count, count

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), momentum)  # type: ignore[union-attr]
        unbiased = variance * (count / max(count - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var), momentum)  # type: ignore[union-attr]
