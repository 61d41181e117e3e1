"""What every device's sampling kernels must do: cases, and answers by the definition in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from taco_kernels.sampling_metadata import NO_TOKEN, Array, Penalties, SamplingMetadata

Sample = Callable[[Tensor, SamplingMetadata], Tensor]
GatherLogprobs = Callable[[Tensor, Array, Array], tuple[Array, Array, Array]]
Penalize = Callable[[Tensor, Tensor, Penalties], None]
Mask = Callable[[Tensor, Array, Array], None]  # logits, rows, bits


def make_metadata(num_rows: int, **columns: float | list[float] | Array) -> SamplingMetadata:
    neutral = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, "uniforms": 0.5}
    types = {"top_k": np.int32, "uniforms": np.float64}
    return SamplingMetadata(
        **{
            name: np.broadcast_to(np.asarray(value), num_rows).astype(types.get(name, np.float32))
            for name, value in (neutral | columns).items()
        }
    )


def pick(metadata: SamplingMetadata, row: int) -> SamplingMetadata:
    return SamplingMetadata(
        **{name: getattr(metadata, name)[[row]] for name in SamplingMetadata.__slots__}
    )


@st.composite
def batches(draw: st.DrawFn, vocab_sizes: list[int]) -> tuple[Tensor, SamplingMetadata]:
    vocab_size = draw(st.sampled_from(vocab_sizes))
    num_rows = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.standard_normal((num_rows, vocab_size)) * draw(st.sampled_from([0.0, 1.0, 5.0]))
    if draw(st.booleans()):
        logits = np.round(logits)  # ties
    logits[rng.random(logits.shape) < draw(st.sampled_from([0.0, 0.5]))] = -np.inf
    metadata = make_metadata(
        num_rows,
        temperature=rng.choice([0.0, 0.3, 1.0, 2.0], num_rows),
        min_p=rng.choice([0.0, 0.0, 0.1, 1.0], num_rows),
        top_k=rng.choice([0, 0, 1, 3, 50, 2**30], num_rows),
        top_p=rng.choice([1.0, 1.0, 0.01, 0.9, 0.9999], num_rows),
        uniforms=rng.random(num_rows),
    )
    return torch.from_numpy(logits.astype(np.float32)), metadata


def acceptable(logits: Array, metadata: SamplingMetadata, slack: float = 1e-5) -> set[int]:
    """Tokens of one row by the definition, in float64; several where rounding may decide."""
    if not np.isfinite(logits.max()):
        return {NO_TOKEN}
    if metadata.temperature[0] == 0:
        return {int(logits.argmax())}
    weights = np.exp((logits.astype(np.float64) - logits.max()) / float(metadata.temperature[0]))
    found: set[int] = set()
    for lean in (-slack, 0.0, slack):
        kept = np.where(weights < float(metadata.min_p[0]) * (1 + lean), 0.0, weights)
        if not kept.any():
            continue
        ranked = np.sort(kept)[::-1]
        if top_k := int(metadata.top_k[0]):
            kept = np.where(kept < ranked[min(top_k, ranked.size) - 1], 0.0, kept)
        if (top_p := float(metadata.top_p[0])) < 1:
            ranked = np.sort(kept)[::-1]
            reached = np.cumsum(ranked) >= (top_p + lean) * ranked.sum()
            kept = np.where(kept < (ranked[reached.argmax()] if reached.any() else 0), 0.0, kept)
        cdf = np.cumsum(kept) / kept.sum()
        share = float(metadata.uniforms[0])
        hit = (cdf - kept / kept.sum() <= share + slack) & (share - slack < cdf) & (kept > 0)
        found.update(np.flatnonzero(hit).tolist())
    return found


def check_each_row(sample: Sample, logits: Tensor, metadata: SamplingMetadata) -> None:
    tokens = sample(logits, metadata).tolist()
    for row, token in enumerate(tokens):
        assert token in acceptable(logits[row].numpy(), pick(metadata, row))


def check_most_likely(sample: Sample, size: int) -> None:
    """Ties beside torch's argmax; rows that hold infinities and NaN have no metadata."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.randint(-3, 3, (8, size), generator=generator).float()  # ties
    logits[1, size // 2] = torch.inf
    logits[2] = -torch.inf
    logits[3, [size // 2, size - 1]] = torch.nan
    logits[4, 0], logits[4, size - 1] = torch.nan, torch.inf
    logits[5], logits[5, size // 3 :], logits[5, size // 3 :: 2] = -1.0, 0.0, -0.0
    logits[6, size - 1] = -torch.nan
    is_spoilt = ~torch.isfinite(logits.amax(-1))
    expected = logits.argmax(-1).masked_fill(is_spoilt, NO_TOKEN)
    assert torch.equal(sample(logits, SamplingMetadata.greedy(8)), expected)
    for filters in ({}, {"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.1}):
        hot = sample(logits, make_metadata(8, **filters))
        assert torch.equal(hot == NO_TOKEN, is_spoilt)


def check_shares_of_tokens(sample: Sample) -> None:
    """With weights that are powers of two every sum is exact."""
    powers = np.array([-2, 0, -np.inf, -1, -3, -np.inf, -3, -2])
    logits = (powers * np.log(2)).astype(np.float32)
    eighths = np.where(np.isfinite(powers), 8 * 2.0**powers, 0).astype(int)
    total = int(eighths.sum())
    metadata = make_metadata(total, uniforms=(np.arange(total) + 0.5) / total)
    tokens = sample(torch.from_numpy(logits).repeat(total, 1), metadata)
    assert tokens.tolist() == np.repeat(np.arange(8), eighths).tolist()


def check_only_tokens_of_weight(sample: Sample, share: float, size: int) -> None:
    logits = torch.full((3, size), -torch.inf)
    logits[0, 0] = logits[1, size // 2] = logits[2, size - 1] = -1e3
    chosen = sample(logits, make_metadata(3, uniforms=share))
    assert chosen.tolist() == [0, size // 2, size - 1]


def check_ties_are_kept(sample: Sample, size: int, num_ties: int) -> None:
    """The most likely tokens are equal, and more than the filters ask for."""
    num_shares = 2 * num_ties
    logits = torch.zeros(num_shares, size)
    logits[:, 10 : 10 + num_ties] = 1.0
    shares = (np.arange(num_shares) + 0.5) / num_shares
    for filters in ({"top_k": num_ties // 2}, {"top_p": num_ties / size / 2}, {"min_p": 0.9}):
        tokens = sample(logits, make_metadata(num_shares, uniforms=shares, **filters))
        assert sorted(set(tokens.tolist())) == list(range(10, 10 + num_ties))


def check_wide_nucleus(sample: Sample, size: int, num_shares: int) -> None:
    """Of nearly equal tokens, top_p 0.9 keeps nine in ten: the most likely ones."""
    logits = torch.linspace(0.0, 1e-2, size).repeat(num_shares, 1)
    shares = (np.arange(num_shares) + 0.5) / num_shares
    tokens = sample(logits, make_metadata(num_shares, uniforms=shares, top_p=0.9))
    lowest = size * (0.1 + 0.9 / (2 * num_shares))
    assert int(tokens.min()) == pytest.approx(lowest, rel=0.01)


def check_logprobs(gather: GatherLogprobs, size: int, num_top: Array) -> None:
    """Values, ids and ranks of four rows, one of which is half ruled out."""
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((4, size)) * 4).astype(np.float32)
    logits[3, : size // 2] = -np.inf
    token_ids = rng.integers(0, size, 4)
    ids, values, ranks = gather(torch.from_numpy(logits), token_ids, num_top)
    wide = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    for row, count in enumerate(num_top):
        best = np.argsort(-logits[row], kind="stable")[:count]
        assert ids[row, : count + 1].tolist() == [token_ids[row], *best.tolist()]
        np.testing.assert_allclose(
            values[row, : count + 1], wide[row, ids[row, : count + 1]], atol=2e-6
        )
        assert ranks[row] == (logits[row] > logits[row, token_ids[row]]).sum() + 1


def check_logprobs_of_equals(gather: GatherLogprobs, size: int) -> None:
    logits = torch.zeros(1, size)
    logits[0, size - 5] = 1.0
    ids, _, ranks = gather(logits, np.array([7]), np.array([4], dtype=np.int32))
    assert ids.tolist() == [[7, size - 5, 0, 1, 2]]
    assert ranks.tolist() == [2]


def check_logprobs_of_nan(gather: GatherLogprobs) -> None:
    logits = torch.zeros(2, 1000)
    logits[0, 600] = torch.nan
    _, values, _ = gather(logits, np.zeros(2, dtype=np.int64), np.full(2, 3, dtype=np.int32))
    assert np.isnan(values[0]).all()
    np.testing.assert_allclose(values[1], -np.log(1000), rtol=1e-6)


def make_penalties() -> tuple[Tensor, Tensor, Penalties]:
    """Logits, a table of tokens, and penalties of four rows out of six."""
    rng = np.random.default_rng(2)
    logits = torch.from_numpy(rng.standard_normal((6, 50)).astype(np.float32))
    tokens = torch.from_numpy(rng.integers(0, 8, (9, 40)).astype(np.int32))
    penalties = Penalties(
        rows=np.array([0, 2, 3, 5]),
        sequences=np.array([8, 0, 3, 4], dtype=np.int32),
        starts=np.array([0, 10, 12, 5], dtype=np.int32),
        lengths=np.array([40, 30, 12, 25], dtype=np.int32),
        repetition=np.array([1.5, 1.0, 0.7, 1.2], dtype=np.float32),
        presence=np.array([0.0, 0.5, 0.3, 0.0], dtype=np.float32),
        frequency=np.array([0.25, 0.0, 0.3, -0.5], dtype=np.float32),
        ngram_size=np.array([0, 2, 3, 1], dtype=np.int32),
    )
    return logits, tokens, penalties


def penalized(logits: Tensor, tokens: Tensor, penalties: Penalties) -> Array:
    """By the definition, in float64."""
    expected = logits.numpy().astype(np.float64)
    for i, row in enumerate(penalties.rows):
        start, end = penalties.starts[i], penalties.lengths[i]
        sequence, size = tokens[penalties.sequences[i], :end].tolist(), penalties.ngram_size[i]
        for token in set(sequence):
            value, factor = expected[row, token], float(penalties.repetition[i])
            expected[row, token] = value / factor if value > 0 else value * factor
        for token in set(sequence[start:]):
            count = sequence[start:].count(token)
            expected[row, token] -= penalties.frequency[i] * count + penalties.presence[i]
        for first in range(end - size + 1 if size else 0):
            if sequence[first : first + size - 1] == sequence[end - size + 1 :]:
                expected[row, sequence[first + size - 1]] = -np.inf
    return expected


def check_penalties(penalize: Penalize, logits: Tensor, tokens: Tensor, given: Penalties) -> None:
    expected = penalized(logits, tokens, given)
    changed = logits.clone()
    penalize(changed, tokens, given)
    np.testing.assert_allclose(changed.numpy(), expected, rtol=1e-6, atol=1e-6)


def check_short_sequence(penalize: Penalize, size: int) -> None:
    """A sequence shorter than an n-gram changes nothing."""
    logits, tokens = torch.ones(1, 9), torch.zeros(1, 4, dtype=torch.int32)
    one, zero = np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.float32)
    penalties = Penalties(
        rows=np.zeros(1, dtype=np.int64),
        sequences=np.zeros(1, dtype=np.int32),
        starts=np.zeros(1, dtype=np.int32),
        lengths=np.full(1, size - 1, dtype=np.int32),
        repetition=one,
        presence=zero,
        frequency=zero,
        ngram_size=np.full(1, size, dtype=np.int32),
    )
    penalize(logits, tokens, penalties)
    assert torch.equal(logits, torch.ones(1, 9))


def check_masks(mask: Mask, vocab_size: int) -> None:
    """Masks of some and of all rows, one of them empty and one full; NaN may be banned, too."""
    rng = np.random.default_rng(vocab_size)
    num_words = -(-vocab_size // 32)
    for rows, stride in (([0, 1, 2, 3], vocab_size), ([1, 3, 5, 6], vocab_size + 3)):
        is_allowed = rng.random((4, num_words * 32)) < 0.5
        is_allowed[0], is_allowed[1] = False, True
        is_allowed[3] |= np.repeat(rng.random(num_words) < 0.9, 32)
        bits = np.packbits(is_allowed, axis=1, bitorder="little").view(np.int32)
        memory = rng.standard_normal((rows[-1] + 1, stride)).astype(np.float32)
        memory[:, :vocab_size][rng.random((rows[-1] + 1, vocab_size)) < 0.1] = np.nan
        expected = memory.copy()
        for row, keeps in zip(rows, is_allowed[:, :vocab_size], strict=True):
            expected[row, :vocab_size][~keeps] = -np.inf
        mask(torch.from_numpy(memory)[:, :vocab_size], np.array(rows), bits)
        assert np.array_equal(memory, expected, equal_nan=True)
