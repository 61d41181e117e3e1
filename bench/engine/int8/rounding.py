"""Ways to round a model to int8, emulated in float32: what each would cost in quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

_LM_HEAD = "lm_head.weight"
_HIGHEST = 127 * 254  # of an outlier, in units of the scale


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to round a model.

    Attributes:
        weights: whether matrices are int8, with a scale per column of W^T.
        group: activations that share a scale; None: those of a token. 0: they are not rounded.
        outliers: values of a token that are kept apart in 16 bits; the scale is that of the others.
        threshold: a value is an outlier if it is above this multiple of the mean absolute value.
        long_tail: the same where more values than `outliers` are above the threshold.
        smoothing: exponent of the columns' magnitudes that move from weights to activations.
        lm_head: whether the LM head is rounded too.
        kv: whether KV is int8, with a scale per token and head.
    """

    weights: bool = True
    group: int | None = None
    outliers: int = 0
    threshold: float = 8.0
    long_tail: float = 12.0
    smoothing: float = 0.0
    lm_head: bool = True
    kv: bool = False


@dataclass(slots=True)
class Rounding:
    """Rounds the products of one model; keeps rounded weights for the next call.

    Attributes:
        num_outliers: that were kept apart, of all rows so far.
        num_rows: of activations so far.
    """

    choice: Choice
    parameters: Mapping[str, Tensor]
    num_outliers: int = 0
    num_rows: int = 0
    _weights: dict[str, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def product(self, name: str, x: Tensor, weight: Tensor) -> Tensor:
        if name == _LM_HEAD and not self.choice.lm_head:
            return F.linear(x, weight)
        if name not in self._weights:
            self._weights[name] = self._round_weight(name, weight)
        rounded, divisors = self._weights[name]
        if divisors is not None:
            x = x / divisors
        return F.linear(self._round_rows(x), rounded)

    def _round_weight(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        divisors = None
        if self.choice.smoothing:
            greatest = torch.stack([_input_magnitudes(w) for w in self._sharers(name)]).amax(0)
            logs = self.choice.smoothing * greatest.log2()
            divisors = torch.exp2((logs.mean() - logs).round())  # powers of two: exact in bf16
            weight = weight * divisors
        return (round_to_scale(weight, 127) if self.choice.weights else weight), divisors

    def _sharers(self, name: str) -> list[Tensor]:
        """The weights that read the same activations as the weight `name`."""
        for parts in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            for part in parts:
                if part in name:
                    return [self.parameters[name.replace(part, other)] for other in parts]
        return [self.parameters[name]]

    def _round_rows(self, x: Tensor) -> Tensor:
        choice = self.choice
        if choice.group == 0:
            return x
        if choice.group is not None:
            k = x.shape[-1]
            padded = F.pad(x, (0, -k % choice.group)).unflatten(-1, (-1, choice.group))
            return round_to_scale(padded, 127).flatten(-2)[..., :k]
        self.num_rows += x.shape[:-1].numel()
        if not choice.outliers:
            return round_to_scale(x, 127)
        magnitudes = x.abs()
        top = magnitudes.topk(choice.outliers + 1, dim=-1).values
        means = magnitudes.mean(dim=-1, keepdim=True)
        has_long_tail = top[..., -1:] > choice.threshold * means
        limits = torch.where(has_long_tail, choice.long_tail, choice.threshold) * means
        is_apart = top[..., :-1] > torch.maximum(limits, top[..., -1:])
        self.num_outliers += int(is_apart.sum())
        others = top.gather(-1, is_apart.sum(dim=-1, keepdim=True)) / 127
        scales = torch.maximum(others, top[..., :1] / _HIGHEST).clamp_min(1e-30)
        return (x / scales).round() * scales


def round_to_scale(x: Tensor, levels: int) -> Tensor:
    """Symmetric integers of each row of the last dim; its greatest number becomes `levels`."""
    scales = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / levels
    return (x / scales).round() * scales


def round_kv(heads: Tensor) -> Tensor:
    """Keys or values [..., tokens, head_dim] in int8 with a scale per token and head."""
    return round_to_scale(heads, 127)


def _input_magnitudes(weight: Tensor) -> Tensor:
    return weight.abs().amax(dim=0).clamp_min(1e-30)
