"""Paged attention of the CPU kernels: bit-identical in any batch, and blind to other memory."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support.cpu_attention import (
    FORMATS,
    LATENT,
    LAYER,
    SPARSE,
    Engine,
    Model,
    Sequence,
    in_chunks,
)
from support.cpu_kernels import kernels_of
from taco_kernels.kv_format import KVFormat
from taco_kernels.library import CpuKernels


@pytest.mark.parametrize("kv_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    "model",
    [
        Model(group=3, head_dim=16),
        Model(group=7, head_dim=20, block_size=32, window=90),
        Model(group=1, head_dim=48, cap=5.0, has_alibi=True),
        Model(group=2, head_dim=16, has_sinks=True, log_n=300, window=200),
        Model(group=4, head_dim=16, sparse=SPARSE),
        LATENT,
        Model(group=2, head_dim=24, value_dim=40),
    ],
)
def test_bits_depend_on_the_sequence_alone(
    cpu_kernels: CpuKernels, kv_format: KVFormat, model: Model
) -> None:
    """Prefilled at once, in chunks, token by token; alone or beside others; on 1 to 3 threads."""
    model = replace(model, format=kv_format)
    length = 540  # into the third span
    sequence = Sequence(model, length, 1)
    at_once = Engine(cpu_kernels, [sequence]).step({0: length})[0]

    chunks = in_chunks(
        Engine(cpu_kernels, [sequence], seed=1), 0, [0, 5, 37, 250, 257, 519, length]
    )
    assert torch.equal(chunks, at_once)

    for num_threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, num_threads)
        engine = Engine(kernels, [sequence], seed=2)
        head = engine.step({0: 510})[0]
        tail = in_chunks(engine, 0, list(range(510, length + 1)))
        assert torch.equal(torch.cat([head, tail]), at_once)

    neighbours = [Sequence(model, 300, 2), sequence, Sequence(model, 33, 3)]
    batched = Engine(cpu_kernels, neighbours, seed=3)
    first = batched.step({0: 299, 1: 400, 2: 10})[1]
    second = batched.step({2: 1, 1: 139, 0: 1})[1]
    third = batched.step({1: 1, 2: 22})[1]
    assert torch.equal(torch.cat([first, second, third]), at_once)


@pytest.mark.parametrize("kv_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    "model",
    [
        Model(num_kv_heads=2, group=7, head_dim=16, has_sinks=True, log_n=300),
        Model(num_kv_heads=2, group=3, head_dim=20, block_size=32, cap=5.0, has_alibi=True),
        replace(LATENT, group=4),
    ],
)
def test_shared_blocks_change_no_bit(
    cpu_kernels: CpuKernels, kv_format: KVFormat, model: Model
) -> None:
    """Sequences that share two spans, or one, or none, and one with several queries."""
    model = replace(model, format=kv_format)
    lengths = [540, 1100, 520, 515, 40, 300, 258, 257, 530]
    shared_tokens = [512, 512, 512, 512, 0, 256, 256, 256, 256]
    counts = [1, 1, 1, 1, 20, 1, 1, 1, 1]
    sequences = with_common_prefix(model, lengths, shared_tokens)

    def step(num_threads: int, shared: list[int]) -> list[Tensor]:
        engine = Engine(kernels_of(cpu_kernels.isa, num_threads), sequences)
        share_blocks(engine, shared)
        engine.prefill([length - count for length, count in zip(lengths, counts, strict=True)])
        return list(engine.step(dict(enumerate(counts))).values())

    alone = step(1, [0] * len(lengths))
    for num_threads in (1, 3):
        for one, other in zip(alone, step(num_threads, shared_tokens), strict=True):
            assert torch.equal(one, other)


def test_shared_blocks_need_no_more_memory_than_is_reserved(
    cpu_kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is reserved before shared prefixes are known.

    If part sizes depended on them, the longest sequence's own spans would be split.
    """
    model = Model(num_kv_heads=2, group=7, head_dim=16)
    lengths = [2570] * 15 + [3200]
    sequences = with_common_prefix(model, lengths, [2560] * 16)
    engines = [Engine(kernels_of(cpu_kernels.isa, 2), sequences) for _ in range(2)]
    share_blocks(engines[0], [2560] * 16)
    for engine in engines:
        engine.prefill([length - 1 for length in lengths])
    guards, sums_of_prefixes = [], []

    def guarded(num_bytes: int) -> Tensor:
        memory = torch.full((num_bytes + (1 << 20),), 0x5A, dtype=torch.uint8)
        aligned = memory[-memory.data_ptr() % 64 :]
        guards.append(aligned[num_bytes:])
        sums_of_prefixes.append(aligned[num_bytes - 4096 : num_bytes])  # the last of a workspace
        return aligned

    monkeypatch.setattr("taco_kernels.cpu.attention.allocate", guarded)
    outs = [engine.step(dict.fromkeys(range(16), 1)) for engine in engines]
    assert all(bool((guard == 0x5A).all()) for guard in guards)
    assert [bool((sums == 0x5A).all()) for sums in sums_of_prefixes] == [False, True]
    for sequence in range(16):
        assert torch.equal(outs[0][sequence], outs[1][sequence])


def with_common_prefix(model: Model, lengths: list[int], shared: list[int]) -> list[Sequence]:
    """Sequences with the same keys and values in their first `shared[i]` tokens."""
    prefix = Sequence(model, max(shared), 1)
    sequences = [Sequence(model, length, 2 + i) for i, length in enumerate(lengths)]
    for sequence, count in zip(sequences, shared, strict=True):
        sequence.keys[:count] = prefix.keys[:count]
        sequence.values[:count] = prefix.values[:count]
    return sequences


def share_blocks(engine: Engine, shared: list[int]) -> None:
    """Gives sequences the first sequence's blocks for their first `shared[i]` tokens."""
    for table, count in zip(engine.tables, shared, strict=True):
        blocks = count // engine.model.block_size
        table[:blocks] = engine.tables[0, :blocks]


@pytest.mark.parametrize("kv_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("num_tokens", [1, 70])
def test_blocks_before_the_window_are_not_read(
    cpu_kernels: CpuKernels, kv_format: KVFormat, block_size: int, num_tokens: int
) -> None:
    """A scheduler may have freed them."""
    model = Model(kv_format, group=4, head_dim=32, block_size=block_size, window=50)
    sequence = Sequence(model, 700 + num_tokens, 1)
    outs = []
    for frees_blocks in (False, True):
        engine = Engine(cpu_kernels, [sequence])
        engine.step({0: 700})
        if frees_blocks:
            never_written = next(
                block for block in range(len(engine.cache.memory)) if block not in engine.tables
            )
            engine.tables[0, : (700 - 49) // block_size] = never_written
        outs.append(engine.step({0: num_tokens})[0])
    assert torch.equal(*outs)


@pytest.mark.parametrize("kv_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("head_dim", [16, 48])
def test_numbers_that_are_not_finite_stay_in_their_rows(
    cpu_kernels: CpuKernels, kv_format: KVFormat, head_dim: int
) -> None:
    model = Model(kv_format, group=4, head_dim=head_dim)
    sequence = Sequence(model, 300, 1)
    whole = Engine(cpu_kernels, [sequence]).step({0: 300})[0]
    sequence.queries[280, 5] = torch.nan
    engine = Engine(cpu_kernels, [sequence])
    out = engine.step({0: 300})[0]
    assert out[280, 5].isnan().all()
    out[280, 5] = whole[280, 5]
    assert torch.equal(out, whole)


@pytest.mark.parametrize("kv_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("position", [256, 280])  # the first of its span, and another one
@pytest.mark.parametrize(
    ("model", "kind", "dim", "number"),
    [
        (Model(group=4, head_dim=48), "keys", 3, torch.nan),
        (Model(group=4, head_dim=48), "values", 3, torch.nan),
        (Model(group=4, head_dim=48, window=100), "values", 3, torch.inf),
        (LATENT, "keys", 3, torch.nan),
        (LATENT, "keys", 90, torch.nan),  # not of the value
    ],
)
def test_numbers_that_are_not_finite_reach_the_rows_that_see_them(
    cpu_kernels: CpuKernels,
    kv_format: KVFormat,
    position: int,
    model: Model,
    kind: str,
    dim: int,
    number: float,
) -> None:
    """And no others, though a row block reads the keys and values of all its tokens."""
    if number == torch.inf and kv_format.of_entry(LAYER) is not None:
        number = torch.nan  # infinity is clamped
    model = replace(model, format=kv_format)
    sequence = Sequence(model, 400, 1)
    whole = Engine(cpu_kernels, [sequence]).step({0: 400})[0]
    getattr(sequence, kind)[position, :, dim] = number
    out = Engine(cpu_kernels, [sequence]).step({0: 400})[0]
    end = position + model.window if model.window else 400
    assert torch.equal(out[:position], whole[:position])
    assert out[position:end].isnan().flatten(1).any(dim=1).all()
    assert torch.equal(out[end:], whole[end:])


def test_infinity_is_clamped_with_the_scale_of_an_entry(cpu_kernels: CpuKernels) -> None:
    kv_format = FORMATS["float8_e4m3fn, entry scales"]
    sequence = Sequence(Model(kv_format), 20, 1)
    sequence.values[3, :, 5] = -torch.inf
    engine = Engine(cpu_kernels, [sequence])
    assert engine.step({0: 20})[0].isfinite().all()
    scales = kv_format.of_entry(LAYER)
    assert scales is not None
    stored = engine.cache.read(LAYER, engine.tables[0], 20)[1][3, :, 5]
    assert torch.equal(stored, torch.full_like(stored, -448 * scales.value))
