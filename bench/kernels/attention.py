"""Paged attention of the CPU kernels beside this machine's limits and torch's SDPA.

    python -m bench.kernels.attention [--threads N] [--model NAME] [--type NAME] [--phase NAME]
        [--batch N] [--context N] [--without-torch] [--save]

Decode attends with one token per sequence, over enough layers to exceed the CPU caches. Blocks
are shuffled, as in a pool that has served for a while. Prefill attends with all tokens of one
prompt. Each round times TACO, torch and reads of memory one after the other. A figure is the best
round, because other load only adds time. `of_read` is relative to the time to read the KV once at
the measured bandwidth, `of_peak` to the time of the operations at the measured peak, and `share` to
the longer of both. torch gets contiguous keys and values, which paged KV never is. It repeats a
latent entry for every query head, so it is left out where that takes more than 2 GiB.
`--without-torch` times TACO alone:

    python -m bench.kernels.attention --model deepseek-v3 --phase decode --without-torch \\
        --batch 16 --context 8192
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench import record
from bench.kernels.rounds import (
    DTYPES,
    Limits,
    load_and_measure_limits,
    make_parser,
    show,
    time_in_turn,
)
from taco_kernels.attention_options import AttentionOptions
from taco_kernels.cpu.attention import AttentionCall
from taco_kernels.cpu.kv_cache import PagedBatch, PagedKV, block_bytes, write_kv
from taco_kernels.kv_entry import KVEntry
from taco_kernels.kv_format import KVFormat
from taco_kernels.library import CpuKernels


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, and the KV entry that they attend to."""

    query: int
    entry: KVEntry


MODELS = {
    "qwen2-0.5b": Heads(14, KVEntry(2, 64, 64)),
    "llama-8b": Heads(32, KVEntry(8, 128, 128)),
    "deepseek-v3": Heads(128, KVEntry(1, 576, 512, latent=True)),
}
# Instructions that compute with bf16 or int8 KV, and with float32, by the roofline's names.
PEAKS = {
    "avx2": ("avx2_fp32", "avx2_fp32"),
    "avx512": ("avx512_fp32", "avx512_fp32"),
    "avx512_bf16": ("avx512_bf16", "avx512_fp32"),
    "amx": ("amx_bf16", "avx512_fp32"),
}
BLOCK_SIZE = 16
DECODES = (
    *((batch, context) for batch in (1, 16, 32, 64) for context in (512, 2048, 8192)),
    (1, 32768),
)
PREFILLS = (128, 512, 1024, 4096)
COLD_BYTES = 256 << 20
MAX_BYTES = 2 << 30  # of KV, and of what torch makes of it; larger calls are skipped
ROUND_SECONDS = 0.05


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--type", choices=DTYPES, action="append")
    parser.add_argument("--phase", choices=("decode", "prefill"), action="append")
    parser.add_argument("--batch", type=int, action="append", help="only these batches of decode")
    parser.add_argument("--context", type=int, action="append", help="only calls of this length")
    parser.add_argument("--without-torch", action="store_true", help="do not time torch's SDPA")
    args = parser.parse_args()
    calls = chosen_calls(args.phase or ("decode", "prefill"), args.batch, args.context)
    if not calls:
        parser.error("no call has this phase, batch and context")
    kernels, roof, figures = load_and_measure_limits(args.threads)
    figures["calls"] = []
    for model in args.model or MODELS:
        for type_name in args.type or DTYPES:
            dtype = DTYPES[type_name]
            limits = Limits.of(roof, PEAKS[kernels.isa][dtype == torch.float32])
            for batch, context, num_new in calls:
                size = batch * context // BLOCK_SIZE * layer_bytes(MODELS[model], dtype)
                if size > MAX_BYTES:
                    continue
                line = measure(
                    kernels,
                    MODELS[model],
                    dtype,
                    (batch, context, num_new),
                    args.rounds,
                    limits,
                    with_torch=not args.without_torch,
                )
                call = {"model": model, "type": type_name, **line}
                figures["calls"].append(call)
                show(call)
    if args.save:
        record.save_by_isa("cpu_attention", figures)


def chosen_calls(
    phases: Sequence[str], batches: Sequence[int] | None, contexts: Sequence[int] | None
) -> list[tuple[int, int, int]]:
    """Returns sequences, tokens per sequence, and how many of these are new.

    Args:
        batches: decodes with these numbers of sequences; None: all calls.
        contexts: calls of these lengths; None: of all lengths.
    """
    calls = [(batch, context, 1) for batch, context in DECODES if "decode" in phases]
    calls += [(1, tokens, tokens) for tokens in PREFILLS if "prefill" in phases]
    return [
        (batch, context, num_new)
        for batch, context, num_new in calls
        if (batches is None or (num_new == 1 and batch in batches))
        and (contexts is None or context in contexts)
    ]


def layer_bytes(heads: Heads, dtype: torch.dtype) -> int:
    """Returns the bytes of one layer of a block."""
    return block_bytes(KVFormat(dtype), BLOCK_SIZE, [heads.entry])


def measure(
    kernels: CpuKernels,
    heads: Heads,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    rounds: int,
    limits: Limits,
    *,
    with_torch: bool = True,
) -> dict[str, float]:
    """Measures one shape: sequences, tokens per sequence, and how many of these are new."""
    batch, context, num_new = shape
    num_bytes = batch * context // BLOCK_SIZE * layer_bytes(heads, dtype)
    num_layers = max(1, COLD_BYTES // num_bytes) if num_new == 1 else 1
    ours = paged_calls(kernels, heads, dtype, shape, num_layers)
    theirs = torch_calls(heads, dtype, shape, num_layers) if with_torch else []
    pairs = batch * num_new * (2 * context - num_new + 1) // 2  # per query and visible key
    found = time_in_turn(
        ours,
        theirs,
        num_bytes=num_bytes,
        operations=2 * pairs * heads.query * (heads.entry.key_dim + heads.entry.value_dim),
        limits=limits,
        rounds=rounds,
        round_seconds=ROUND_SECONDS,
    )
    return {"batch": batch, "context": context, "new": num_new, **found}


def paged_calls(
    kernels: CpuKernels,
    heads: Heads,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    num_layers: int,
) -> list[Callable[[], Tensor]]:
    """Returns one call per layer."""
    batch, context, num_new = shape
    blocks_each = -(-context // BLOCK_SIZE)
    cache = PagedKV.allocate(
        batch * blocks_each, KVFormat(dtype), BLOCK_SIZE, [heads.entry] * num_layers
    )
    order = torch.randperm(batch * blocks_each, generator=torch.Generator().manual_seed(0))
    tables = order.int().view(batch, blocks_each)
    for sequence in range(batch):
        whole = make_batch(1, context, context, tables[sequence : sequence + 1])
        entry = heads.entry
        keys = torch.randn(context, entry.num_heads, entry.key_dim)
        values = None if entry.latent else torch.randn(context, entry.num_heads, entry.value_dim)
        for layer in range(num_layers):
            write_kv(kernels, cache, whole, layer, keys, values)
    step = make_batch(batch, context, num_new, tables)
    query = torch.randn(batch * num_new, heads.query, heads.entry.key_dim)
    options = AttentionOptions(heads.entry.key_dim**-0.5)
    return [
        AttentionCall(kernels, query, cache, step, layer, options) for layer in range(num_layers)
    ]


def make_batch(num_seqs: int, context: int, num_new: int, tables: Tensor) -> PagedBatch:
    starts = torch.arange(num_seqs + 1, dtype=torch.int32) * num_new
    return PagedBatch(starts, torch.full((num_seqs,), context, dtype=torch.int32), tables)


def torch_calls(
    heads: Heads, dtype: torch.dtype, shape: tuple[int, int, int], num_layers: int
) -> list[Callable[[], Tensor]]:
    """Returns torch's calls; none for int8, which SDPA does not support, nor large latent KV."""
    batch, context, num_new = shape
    entry = heads.entry
    if dtype == torch.int8 or (entry.latent and repeated_bytes(heads, dtype, shape) > MAX_BYTES):
        return []
    query = torch.randn(batch, heads.query, num_new, entry.key_dim, dtype=dtype)

    def layer() -> Callable[[], Tensor]:
        keys = torch.randn(batch, entry.num_heads, context, entry.key_dim, dtype=dtype)
        values = keys[..., : entry.value_dim]
        if not entry.latent:
            values = torch.randn(batch, entry.num_heads, context, entry.value_dim, dtype=dtype)
        return lambda: scaled_dot_product_attention(
            query, keys, values, is_causal=num_new > 1, enable_gqa=True
        )

    return [layer() for _ in range(num_layers)]


def repeated_bytes(heads: Heads, dtype: torch.dtype, shape: tuple[int, int, int]) -> int:
    """Returns the bytes of keys, values and scores per query head: what SDPA makes of latent KV."""
    batch, context, num_new = shape
    values = heads.entry.key_dim + heads.entry.value_dim + num_new
    return batch * heads.query * context * values * dtype.itemsize


if __name__ == "__main__":
    main()
