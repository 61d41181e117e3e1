"""All kernels but attention at the sizes of Llama-3-8B, and the matrix products of a layer.

A kernel's share is the bandwidth of its minimum bytes, relative to the measured copy bandwidth.
A product's share is relative to that or to the measured peak, whichever bounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from bench.gpu.harness.context import Context
from bench.gpu.harness.timing import Call, time_calls
from bench.gpu.parts.machine import Ceilings, load_ceilings
from bench.kernels.sampling import SETTINGS, make_metadata, sort_and_draw
from taco_kernels.triton import activation, norm, rotary_kv
from taco_kernels.triton.block_copy import copy_blocks
from taco_worker.devices.transfers import Transfers
from taco_worker.sampling.torch_ops import TorchSampling
from taco_worker.sampling.triton_ops import TritonSampling

_BLOCK_SIZE = 16
_WORK_SECONDS = 3.0
_MAX_LOGIT_ROWS = 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the model and of the measured operations."""

    hidden: int
    inner: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rows: tuple[int, ...]
    sampled_rows: tuple[int, ...]
    block_bytes: int
    num_blocks: int


LLAMA_8B = Sizes(
    *(4096, 14336, 32, 8, 128, 128256),
    rows=(1, 32, 128, 256, 2048, 8192),
    sampled_rows=(1, 32, 256),
    block_bytes=2 << 20,
    num_blocks=256,
)
TINY = Sizes(64, 96, 4, 2, 16, 300, rows=(1, 3), sampled_rows=(2,), block_bytes=64, num_blocks=5)


@dataclass(frozen=True, slots=True)
class Work:
    """An operation to time.

    Attributes:
        calls: the same operation over different inputs.
        num_bytes: minimum bytes that one call reads and writes.
        operations: a multiply-add counts as two.
        others: other implementations.
        captures: whether it can be part of a CUDA graph.
        link_gb_per_s: rate of the link that it uses, instead of the copy bandwidth.
    """

    name: str
    calls: Sequence[Call]
    num_bytes: int
    operations: int = 0
    others: Mapping[str, Sequence[Call]] = field(default_factory=dict)
    captures: bool = True
    link_gb_per_s: float | None = None


def measure(context: Context) -> None:
    sizes, ceilings = LLAMA_8B if context.is_real else TINY, load_ceilings(context)
    families: tuple[Callable[..., Iterator[Work]], ...] = (
        *(_products, _norms, _rotations, _activations, _choices),
        *(_logprobs, _block_copies),
    )
    for family in families:
        try:
            for work in family(context, sizes, ceilings):
                if context.report.has_time(work.name, _WORK_SECONDS):
                    _measure_work(context, work, ceilings)
        except Exception as error:  # for example a compile error; other kernels continue
            context.report.leave_out(family.__name__.strip("_"), error)


def _measure_work(context: Context, work: Work, ceilings: Ceilings) -> None:
    timing = time_calls(work.calls, context.device, capture=work.captures)
    copy_rate = work.link_gb_per_s or ceilings.copy_gb_per_s
    floor_us = max(work.num_bytes / copy_rate / 1e3, work.operations / ceilings.bf16_tflops / 1e6)
    line: dict[str, Any] = timing.record() | {
        "gb_per_s": round(work.num_bytes / timing.us / 1e3, 1),
        "share": round(floor_us / timing.us, 3),
    }
    for name, calls in work.others.items():
        other = time_calls(calls, context.device, capture=work.captures)
        line[name] = round(other.us, 2)
    others = "".join(f"  {name} {line[name]:.1f}" for name in work.others)
    context.report.add(work.name, line, f"{timing.us:9.1f} us {line['share']:6.1%}{others}")


def _sets(
    context: Context, num_bytes: int, make: Callable[..., Call], *arguments: Any
) -> list[Call]:
    """Returns enough calls that no input is in the L2 cache."""
    return [make(*arguments) for _ in range(context.num_sets(num_bytes))]


def _random(context: Context, *shape: int) -> Tensor:
    return torch.randn(shape, device=context.device, dtype=context.dtype)


def _products(context: Context, sizes: Sizes, ceilings: Ceilings) -> Iterator[Work]:
    """Matrix products by torch, as the model computes them."""

    def make(rows: int, outputs: int, inputs: int) -> Call:
        x, weight = _random(context, rows, inputs), _random(context, outputs, inputs)
        return lambda: linear(x, weight)

    heads = (sizes.query_heads + 2 * sizes.kv_heads) * sizes.head_dim
    layers = {
        "qkv": (heads, sizes.hidden),
        "o_proj": (sizes.hidden, sizes.query_heads * sizes.head_dim),
        "gate_up": (2 * sizes.inner, sizes.hidden),
        "down": (sizes.hidden, sizes.inner),
        "lm_head": (sizes.vocab, sizes.hidden),
    }
    for rows in sizes.rows:
        for name, (outputs, inputs) in layers.items():
            if name == "lm_head" and rows > _MAX_LOGIT_ROWS:
                continue  # no step needs that many logits
            num_bytes = 2 * (outputs * inputs + rows * (outputs + inputs))
            calls = _sets(context, num_bytes, make, rows, outputs, inputs)
            yield Work(f"linear {name}, {rows} rows", calls, num_bytes, 2 * rows * outputs * inputs)


def _norms(context: Context, sizes: Sizes, ceilings: Ceilings) -> Iterator[Work]:
    weight = _random(context, sizes.hidden)

    def ours(rows: int) -> Call:
        x, residual = (_random(context, rows, sizes.hidden) for _ in range(2))
        out = torch.empty_like(x)
        return lambda: norm.rms_norm(x, weight, 1e-5, residual=residual, out=out)

    def by_torch(rows: int) -> Call:
        x, residual = (_random(context, rows, sizes.hidden) for _ in range(2))
        return lambda: rms_norm(residual.add_(x), (sizes.hidden,), weight, 1e-5)

    for rows in sizes.rows:
        num_bytes = 2 * 4 * rows * sizes.hidden
        calls = _sets(context, num_bytes, ours, rows)
        others = {"torch": _sets(context, num_bytes, by_torch, rows)}
        yield Work(f"rms_norm with residual, {rows} rows", calls, num_bytes, others=others)


def _rotations(context: Context, sizes: Sizes, ceilings: Ceilings) -> Iterator[Work]:
    """Rotary embedding and KV write, of a fused qkv."""
    num_heads = sizes.query_heads + 2 * sizes.kv_heads
    num_blocks = -(-max(sizes.rows) // _BLOCK_SIZE)
    cos_sin = torch.randn(max(sizes.rows), sizes.head_dim, device=context.device)
    cache = _random(context, num_blocks, 2, _BLOCK_SIZE, sizes.kv_heads, sizes.head_dim)
    slots = torch.randperm(num_blocks * _BLOCK_SIZE, device=context.device)

    def make(rows: int) -> Call:
        heads = _random(context, rows, num_heads, sizes.head_dim)
        query, key, value = heads.split((sizes.query_heads, sizes.kv_heads, sizes.kv_heads), 1)
        positions = torch.arange(rows, device=context.device)
        caches = cache[:, 0], cache[:, 1]
        return lambda: rotary_kv.rotate_and_write_kv(
            query, key, value, positions, cos_sin, *caches, slots[:rows]
        )

    for rows in sizes.rows:
        num_bytes = 2 * 2 * rows * num_heads * sizes.head_dim
        calls = _sets(context, num_bytes, make, rows)
        yield Work(f"rotary, KV write, {rows} rows", calls, num_bytes)


def _activations(context: Context, sizes: Sizes, ceilings: Ceilings) -> Iterator[Work]:
    def ours(rows: int) -> Call:
        gate_up = _random(context, rows, 2 * sizes.inner)
        out = _random(context, rows, sizes.inner)
        return lambda: activation.act_mul(gate_up, out=out)

    def by_torch(rows: int) -> Call:
        gate, up = _random(context, rows, 2 * sizes.inner).chunk(2, dim=1)
        return lambda: silu(gate) * up

    for rows in sizes.rows:
        num_bytes = 2 * 3 * rows * sizes.inner
        calls = _sets(context, num_bytes, ours, rows)
        others = {"torch": _sets(context, num_bytes, by_torch, rows)}
        yield Work(f"silu_mul, {rows} rows", calls, num_bytes, others=others)


def _choices(context: Context, sizes: Sizes, ceilings: Ceilings) -> Iterator[Work]:
    """From logits to tokens; parameter columns are uploaded from the host each time."""
    ours, by_torch = TritonSampling(Transfers(context.device)), TorchSampling()
    for rows in sizes.sampled_rows:
        logits = _zipf_logits(context, rows, sizes.vocab)
        for name, setting in SETTINGS.items():
            metadata = make_metadata(rows, setting)
            others = {
                "torch": [partial(by_torch.sample, logits, metadata)],
                "sort": [partial(sort_and_draw, logits, setting)],
            }
            calls = [partial(ours.sample, logits, metadata)]
            yield Work(
                f"sample, {name}, {rows} rows", calls, logits.nbytes, others=others, captures=False
            )


def _logprobs(context: Context, sizes: Sizes, ceilings: Ceilings) -> Iterator[Work]:
    ours, by_torch = TritonSampling(Transfers(context.device)), TorchSampling()
    for rows in sizes.sampled_rows:
        logits = _zipf_logits(context, rows, sizes.vocab)
        arguments = (logits, logits.argmax(-1), np.full(rows, 5, np.int32))
        yield Work(
            f"logprobs, 5 best, {rows} rows",
            [partial(ours.gather_logprobs, *arguments)],
            logits.nbytes,
            others={"torch": [partial(by_torch.gather_logprobs, *arguments)]},
            captures=False,
        )


def _block_copies(context: Context, sizes: Sizes, ceilings: Ceilings) -> Iterator[Work]:
    """Copies whole blocks of all layers between random positions of two memories."""
    shape = (sizes.num_blocks, sizes.block_bytes)
    here, there = (
        torch.randint(256, shape, dtype=torch.uint8, device=context.device) for _ in range(2)
    )
    pinned = torch.zeros(shape, dtype=torch.uint8, pin_memory=context.is_real)
    ids = [torch.randperm(sizes.num_blocks, device=context.device) for _ in range(2)]
    ways = {
        "to the host": (here, pinned, here.nbytes, ceilings.to_host_gb_per_s),
        "from the host": (pinned, here, here.nbytes, ceilings.from_host_gb_per_s),
        "on the device": (here, there, 2 * here.nbytes, None),
    }
    for name, (source, target, moved, rate) in ways.items():
        calls = [partial(copy_blocks, source, target, *ids)]
        others = {"one by one": [partial(_copy_each, source, target, *(i.tolist() for i in ids))]}
        yield Work(
            f"{sizes.num_blocks} blocks {name}", calls, moved, others=others, link_gb_per_s=rate
        )


def _copy_each(source: Tensor, target: Tensor, sources: list[int], targets: list[int]) -> None:
    """Copies like the host tier without the kernel: one launch per block."""
    for source_id, target_id in zip(sources, targets, strict=True):
        target[target_id].copy_(source[source_id], non_blocking=True)


def _zipf_logits(context: Context, rows: int, vocab: int) -> Tensor:
    """Logits like a language model's: the weight of rank r falls with r to the power 1.5."""
    ranks = torch.rand(rows, vocab, device=context.device).argsort(-1)
    return -1.5 * torch.log(ranks + 1.0)
