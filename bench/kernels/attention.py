"""Paged attention of the CPU kernels, compared with this machine's limits and torch's SDPA.

    python -m bench.kernels.attention [--threads N] [--model NAME] [--type NAME] [--phase NAME]
        [--batch N] [--context N] [--shared TOKENS] [--without-torch] [--save]

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

With `--shared`, the sequences of a decode begin with the same blocks, as after a hit in the prefix
cache. torch reads every sequence's keys and values, so it is left out:

    python -m bench.kernels.attention --model qwen2-0.5b --type bf16 --phase decode \\
        --without-torch --batch 32 --context 2048 --shared 1024
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
    add_shape_flags,
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


@dataclass(frozen=True, slots=True)
class Shape:
    """Sequences, tokens of each, how many of these are new, and how many all sequences share."""

    batch: int
    context: int
    num_new: int
    num_shared: int = 0

    @property
    def num_blocks(self) -> int:
        """Different blocks of KV that the sequences read."""
        shared, each = self.num_shared // BLOCK_SIZE, -(-self.context // BLOCK_SIZE)
        return shared + self.batch * (each - shared)


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
    add_shape_flags(parser, MODELS, types_of="KV cache")
    parser.add_argument(
        "--phase",
        choices=("decode", "prefill"),
        action="append",
        help="phases to measure; may be repeated (default both)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        action="append",
        help="only decodes of this number of sequences; may be repeated (default all calls)",
    )
    parser.add_argument(
        "--context",
        type=int,
        action="append",
        help="only calls of this length in tokens; may be repeated (default all)",
    )
    parser.add_argument(
        "--shared",
        type=int,
        default=0,
        help="tokens that the sequences of a decode share (default %(default)s)",
    )
    parser.add_argument("--without-torch", action="store_true", help="do not time torch's SDPA")
    args = parser.parse_args()
    if args.shared < 0:
        parser.error("--shared must not be negative")
    if args.shared and not args.without_torch:
        parser.error("torch cannot share blocks: give --without-torch")
    record.check_savable(parser, args, "shared")
    shapes = chosen_shapes(
        args.phase or ("decode", "prefill"), args.batch, args.context, args.shared
    )
    if not shapes:
        parser.error("no call has this phase, batch and context")
    kernels, roof, figures = load_and_measure_limits(args.threads)
    figures["calls"] = []
    for model in args.model or MODELS:
        for type_name in args.type or DTYPES:
            dtype = DTYPES[type_name]
            limits = Limits.of(roof, PEAKS[kernels.isa][dtype == torch.float32])
            for shape in shapes:
                size = shape.num_blocks * layer_bytes(MODELS[model], dtype)
                if size > MAX_BYTES:
                    continue
                line = measure(
                    kernels,
                    MODELS[model],
                    dtype,
                    shape,
                    args.rounds,
                    limits,
                    with_torch=not args.without_torch,
                )
                call = {"model": model, "type": type_name, **line}
                figures["calls"].append(call)
                show(call)
    if args.save:
        record.save_by_isa("cpu_attention", figures)


def chosen_shapes(
    phases: Sequence[str],
    batches: Sequence[int] | None,
    contexts: Sequence[int] | None,
    num_shared: int,
) -> list[Shape]:
    """Returns the shapes to measure.

    Args:
        batches: decodes with these numbers of sequences; None: all calls.
        contexts: calls of these lengths; None: of all lengths.
        num_shared: tokens that the sequences of a decode share, rounded down to whole blocks. Only
            longer contexts are returned, and no prefill, which has one sequence, unless it is 0.
    """
    decodes = [Shape(batch, context, 1, num_shared) for batch, context in DECODES]
    prefills = [Shape(1, tokens, tokens) for tokens in PREFILLS]
    shapes = [shape for shape in decodes if "decode" in phases and shape.context > num_shared]
    shapes += prefills if "prefill" in phases and not num_shared else []
    return [
        shape
        for shape in shapes
        if (batches is None or (shape.num_new == 1 and shape.batch in batches))
        and (contexts is None or shape.context in contexts)
    ]


def layer_bytes(heads: Heads, dtype: torch.dtype) -> int:
    """Returns the bytes of one layer of a block."""
    return block_bytes(KVFormat(dtype), BLOCK_SIZE, [heads.entry])


def measure(
    kernels: CpuKernels,
    heads: Heads,
    dtype: torch.dtype,
    shape: Shape,
    rounds: int,
    limits: Limits,
    *,
    with_torch: bool = True,
) -> dict[str, float]:
    num_bytes = shape.num_blocks * layer_bytes(heads, dtype)
    num_layers = max(1, COLD_BYTES // num_bytes) if shape.num_new == 1 else 1
    ours = paged_calls(kernels, heads, dtype, shape, num_layers)
    theirs = torch_calls(heads, dtype, shape, num_layers) if with_torch else []
    # Per query and visible key:
    pairs = shape.batch * shape.num_new * (2 * shape.context - shape.num_new + 1) // 2
    found = time_in_turn(
        ours,
        theirs,
        num_bytes=num_bytes,
        operations=2 * pairs * heads.query * (heads.entry.key_dim + heads.entry.value_dim),
        limits=limits,
        rounds=rounds,
        round_seconds=ROUND_SECONDS,
    )
    call = {"batch": shape.batch, "context": shape.context, "new": shape.num_new}
    return call | ({"shared": shape.num_shared} if shape.num_shared else {}) | found


def paged_calls(
    kernels: CpuKernels,
    heads: Heads,
    dtype: torch.dtype,
    shape: Shape,
    num_layers: int,
) -> list[Callable[[], Tensor]]:
    """Returns one call per layer."""
    batch, context = shape.batch, shape.context
    tables = block_tables(shape)
    cache = PagedKV.allocate(
        tables.numel(), KVFormat(dtype), BLOCK_SIZE, [heads.entry] * num_layers
    )
    for sequence in range(batch):
        whole = make_batch(1, context, context, tables[sequence : sequence + 1])
        entry = heads.entry
        keys = torch.randn(context, entry.num_heads, entry.key_dim)
        values = None if entry.latent else torch.randn(context, entry.num_heads, entry.value_dim)
        for layer in range(num_layers):
            write_kv(kernels, cache, whole, layer, keys, values)
    step = make_batch(batch, context, shape.num_new, tables)
    query = torch.randn(batch * shape.num_new, heads.query, heads.entry.key_dim)
    options = AttentionOptions(heads.entry.key_dim**-0.5)
    return [
        AttentionCall(kernels, query, cache, step, layer, options) for layer in range(num_layers)
    ]


def block_tables(shape: Shape) -> Tensor:
    """Returns the block table of each sequence, int32 [batch, blocks of a sequence], shuffled."""
    blocks_each = -(-shape.context // BLOCK_SIZE)
    order = torch.randperm(shape.batch * blocks_each, generator=torch.Generator().manual_seed(0))
    tables = order.int().view(shape.batch, blocks_each)
    num_shared = shape.num_shared // BLOCK_SIZE
    tables[:, :num_shared] = tables[0, :num_shared].clone()
    return tables


def make_batch(num_seqs: int, context: int, num_new: int, tables: Tensor) -> PagedBatch:
    starts = torch.arange(num_seqs + 1, dtype=torch.int32) * num_new
    return PagedBatch(starts, torch.full((num_seqs,), context, dtype=torch.int32), tables)


def torch_calls(
    heads: Heads, dtype: torch.dtype, shape: Shape, num_layers: int
) -> list[Callable[[], Tensor]]:
    """Returns torch's calls; none for int8, which SDPA does not support, nor large latent KV."""
    batch, context, num_new = shape.batch, shape.context, shape.num_new
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


def repeated_bytes(heads: Heads, dtype: torch.dtype, shape: Shape) -> int:
    """Returns the bytes of keys, values and scores per query head: what SDPA makes of latent KV."""
    values = heads.entry.key_dim + heads.entry.value_dim + shape.num_new
    return shape.batch * heads.query * shape.context * values * dtype.itemsize


if __name__ == "__main__":
    main()
