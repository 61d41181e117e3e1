"""Tokens against what the sampler's own torch path says is in tests/worker/sampling; here the
kernels alone: shapes and sizes around groups and segments, bits, limits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.library import CpuKernels
from taco_kernels.cpu.sampling import choose_tokens, gather_logprobs, penalize
from taco_kernels.sampling_columns import Array, Choice, Penalties

GROUP, SEGMENT = 256, 64 * 256


def make_choice(num_rows: int, **columns: float | list[float] | Array) -> Choice:
    neutral = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0, "uniforms": 0.5}
    types = {"top_k": np.int32, "uniforms": np.float64}
    return Choice(
        **{
            name: np.broadcast_to(np.asarray(value), num_rows).astype(types.get(name, np.float32))
            for name, value in (neutral | columns).items()
        }
    )


def pick(choice: Choice, row: int) -> Choice:
    return Choice(**{name: getattr(choice, name)[[row]] for name in Choice.__slots__})


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, Choice]:
    vocab_size = draw(st.sampled_from([1, 5, 16, 100, GROUP - 1, GROUP, 3 * GROUP + 7]))
    num_rows = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.standard_normal((num_rows, vocab_size)) * draw(st.sampled_from([0.0, 1.0, 5.0]))
    if draw(st.booleans()):
        logits = np.round(logits)  # ties
    logits[rng.random(logits.shape) < draw(st.sampled_from([0.0, 0.5]))] = -np.inf
    choice = make_choice(
        num_rows,
        temperature=rng.choice([0.0, 0.3, 1.0, 2.0], num_rows),
        min_p=rng.choice([0.0, 0.0, 0.1, 1.0], num_rows),
        top_k=rng.choice([0, 0, 1, 3, 50, 2**30], num_rows),
        top_p=rng.choice([1.0, 1.0, 0.01, 0.9, 0.9999], num_rows),
        uniforms=rng.random(num_rows),
    )
    return torch.from_numpy(logits.astype(np.float32)), choice


def acceptable(logits: Array, choice: Choice, slack: float = 1e-5) -> set[int]:
    """Tokens of one row by the definition, in float64; several where rounding may decide."""
    if choice.temperature[0] == 0 or not np.isfinite(logits.max()):
        return {int(logits.argmax())}
    weights = np.exp((logits.astype(np.float64) - logits.max()) / float(choice.temperature[0]))
    found: set[int] = set()
    for lean in (-slack, 0.0, slack):
        kept = np.where(weights < float(choice.min_p[0]) * (1 + lean), 0.0, weights)
        if not kept.any():
            continue
        ranked = np.sort(kept)[::-1]
        if top_k := int(choice.top_k[0]):
            kept = np.where(kept < ranked[min(top_k, ranked.size) - 1], 0.0, kept)
        if (top_p := float(choice.top_p[0])) < 1:
            ranked = np.sort(kept)[::-1]
            reached = np.cumsum(ranked) >= (top_p + lean) * ranked.sum()
            kept = np.where(kept < (ranked[reached.argmax()] if reached.any() else 0), 0.0, kept)
        cdf = np.cumsum(kept) / kept.sum()
        share = float(choice.uniforms[0])
        hit = (cdf - kept / kept.sum() <= share + slack) & (share - slack < cdf) & (kept > 0)
        found.update(np.flatnonzero(hit).tolist())
    return found


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@given(batch=batches())
@settings(max_examples=60, deadline=None)
def test_each_row_gets_the_token_of_the_definition(
    isa: str, batch: tuple[torch.Tensor, Choice]
) -> None:
    logits, choice = batch
    tokens = choose_tokens(kernels_of(isa, 2), logits, choice).tolist()
    for row, token in enumerate(tokens):
        assert token in acceptable(logits[row].numpy(), pick(choice, row))


@pytest.mark.parametrize("vocab_size", [GROUP, 1000, 2 * SEGMENT + 3 * GROUP + 5])
def test_a_token_depends_on_its_row_alone(cpu_kernels: CpuKernels, vocab_size: int) -> None:
    """Not on other rows, their number, or threads: fewer rows than threads share each row."""
    rng = np.random.default_rng(vocab_size)
    num_rows = 8
    logits = torch.from_numpy(rng.standard_normal((num_rows, vocab_size)).astype(np.float32))
    choice = make_choice(
        num_rows,
        temperature=[0.0, 1.0, 1.5, 0.7, 1.0, 1.0, 1.0, 1.0],
        min_p=[0.0, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0, 0.01],
        top_k=[0, 0, 0, 50, 0, 5000, 50, 5000],
        top_p=[1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 0.9, 0.5],
        uniforms=rng.random(num_rows),
    )
    tokens = choose_tokens(cpu_kernels, logits, choice).tolist()
    for num_threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, num_threads)
        assert choose_tokens(kernels, logits, choice).tolist() == tokens
        for row in range(num_rows):
            alone = choose_tokens(kernels, logits[row : row + 1], pick(choice, row))
            assert alone.tolist() == [tokens[row]]
    wider = torch.full((num_rows, vocab_size + 3), torch.nan)
    wider[:, :vocab_size] = logits
    assert choose_tokens(cpu_kernels, wider[:, :vocab_size], choice).tolist() == tokens


@pytest.mark.parametrize("size", [1, 3, 17, GROUP, GROUP + 1, SEGMENT + 1])
def test_the_most_likely_token_is_that_of_torch(cpu_kernels: CpuKernels, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randint(-3, 3, (7, size), generator=generator).float()  # ties
    logits[1, size // 2] = torch.inf
    logits[2] = -torch.inf
    logits[3, [size // 2, size - 1]] = torch.nan
    logits[4, 0], logits[4, size - 1] = torch.nan, torch.inf
    tokens = choose_tokens(cpu_kernels, logits, Choice.most_likely(7))
    assert torch.equal(tokens, logits.argmax(-1))


def test_each_token_owns_as_many_shares_as_its_weight(cpu_kernels: CpuKernels) -> None:
    """With weights that are powers of two every sum is exact."""
    powers = np.array([-2, 0, -np.inf, -1, -3, -np.inf, -3, -2])
    logits = (powers * np.log(2)).astype(np.float32)
    eighths = np.where(np.isfinite(powers), 8 * 2.0**powers, 0).astype(int)
    total = int(eighths.sum())
    choice = make_choice(total, uniforms=(np.arange(total) + 0.5) / total)
    tokens = choose_tokens(cpu_kernels, torch.from_numpy(logits).repeat(total, 1), choice)
    assert tokens.tolist() == np.repeat(np.arange(8), eighths).tolist()


@pytest.mark.parametrize("share", [0.0, 1.0 - 2.0**-52])
@pytest.mark.parametrize("size", [3, GROUP + 9, 3 * GROUP])
def test_the_first_and_the_last_share_choose_tokens_that_have_weight(
    cpu_kernels: CpuKernels, share: float, size: int
) -> None:
    logits = torch.full((3, size), -torch.inf)
    logits[0, 0] = logits[1, size // 2] = logits[2, size - 1] = -1e3
    chosen = choose_tokens(cpu_kernels, logits, make_choice(3, uniforms=share))
    assert chosen.tolist() == [0, size // 2, size - 1]


def test_a_filter_keeps_all_tokens_that_tie(cpu_kernels: CpuKernels) -> None:
    logits = torch.zeros(400, 1000)
    logits[:, 10:40] = 1.0
    shares = (np.arange(400) + 0.5) / 400
    for filters in ({"top_k": 7}, {"top_p": 0.02}, {"min_p": 0.9}):
        tokens = choose_tokens(cpu_kernels, logits, make_choice(400, uniforms=shares, **filters))
        assert sorted(set(tokens.tolist())) == list(range(10, 40))


def test_a_wide_nucleus_holds_the_most_likely_tokens(cpu_kernels: CpuKernels) -> None:
    size = 2 * SEGMENT
    logits = torch.linspace(0.0, 1e-2, size).repeat(300, 1)
    shares = (np.arange(300) + 0.5) / 300
    tokens = choose_tokens(cpu_kernels, logits, make_choice(300, uniforms=shares, top_p=0.9))
    assert int(tokens.min()) == pytest.approx(size * (0.1 + 0.9 / 600), rel=0.01)


def test_log_probabilities_and_ranks(cpu_kernels: CpuKernels) -> None:
    rng = np.random.default_rng(0)
    for size in (5, GROUP + 40, SEGMENT + 300):
        logits = (rng.standard_normal((4, size)) * 4).astype(np.float32)
        logits[3, : size // 2] = -np.inf
        token_ids = rng.integers(0, size, 4)
        num_top = np.array([0, 5, 1, min(size, 300)], dtype=np.int32)
        ids, values, ranks = gather_logprobs(
            cpu_kernels, torch.from_numpy(logits), token_ids, num_top
        )
        wide = torch.from_numpy(logits).double().log_softmax(-1).numpy()
        for row, count in enumerate(num_top):
            best = np.argsort(-logits[row], kind="stable")[:count]
            assert ids[row, : count + 1].tolist() == [token_ids[row], *best.tolist()]
            np.testing.assert_allclose(
                values[row, : count + 1], wide[row, ids[row, : count + 1]], atol=2e-6
            )
            assert ranks[row] == (logits[row] > logits[row, token_ids[row]]).sum() + 1


def test_log_probabilities_do_not_depend_on_other_rows_nor_on_threads(
    cpu_kernels: CpuKernels,
) -> None:
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.standard_normal((6, 3000)).astype(np.float32))
    token_ids, num_top = rng.integers(0, 3000, 6), np.full(6, 9, dtype=np.int32)
    together = gather_logprobs(cpu_kernels, logits, token_ids, num_top)
    for row in range(6):
        chosen = slice(row, row + 1)
        alone = gather_logprobs(
            kernels_of(cpu_kernels.isa, 3), logits[chosen], token_ids[chosen], num_top[chosen]
        )
        for whole, part in zip(together, alone, strict=True):
            assert np.array_equal(whole[chosen], part)


def test_equal_logits_are_ranked_by_their_ids(cpu_kernels: CpuKernels) -> None:
    logits = torch.zeros(1, 2 * GROUP)
    logits[0, 300] = 1.0
    ids, _, ranks = gather_logprobs(
        cpu_kernels, logits, np.array([7]), np.array([4], dtype=np.int32)
    )
    assert ids.tolist() == [[7, 300, 0, 1, 2]]
    assert ranks.tolist() == [2]


def test_a_nan_makes_a_row_of_nans_and_no_other(cpu_kernels: CpuKernels) -> None:
    logits = torch.zeros(2, 1000)
    logits[0, 600] = torch.nan
    _, values, _ = gather_logprobs(
        cpu_kernels, logits, np.zeros(2, dtype=np.int64), np.full(2, 3, dtype=np.int32)
    )
    assert np.isnan(values[0]).all()
    np.testing.assert_allclose(values[1], -np.log(1000), rtol=1e-6)


def test_penalties_change_what_their_definition_says(cpu_kernels: CpuKernels) -> None:
    rng = np.random.default_rng(2)
    vocab_size, num_rows = 50, 6
    logits = rng.standard_normal((num_rows, vocab_size)).astype(np.float32)
    tokens = rng.integers(0, 8, (9, 40)).astype(np.int32)
    chosen = np.array([0, 2, 3, 5])
    penalties = Penalties(
        rows=chosen,
        sequences=np.array([8, 0, 3, 4], dtype=np.int32),
        starts=np.array([0, 10, 12, 5], dtype=np.int32),
        lengths=np.array([40, 30, 12, 25], dtype=np.int32),
        repetition=np.array([1.5, 1.0, 0.7, 1.2], dtype=np.float32),
        presence=np.array([0.0, 0.5, 0.3, 0.0], dtype=np.float32),
        frequency=np.array([0.25, 0.0, 0.3, -0.5], dtype=np.float32),
        ngram_size=np.array([0, 2, 3, 1], dtype=np.int32),
    )
    expected = logits.astype(np.float64)
    for i, row in enumerate(chosen):
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
    changed = torch.from_numpy(logits)
    penalize(cpu_kernels, changed, torch.from_numpy(tokens), penalties)
    np.testing.assert_allclose(changed.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_sequence_shorter_than_an_ngram_changes_nothing(
    cpu_kernels: CpuKernels, size: int
) -> None:
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
    penalize(cpu_kernels, logits, tokens, penalties)
    assert torch.equal(logits, torch.ones(1, 9))


def test_wrong_arguments_are_refused(cpu_kernels: CpuKernels) -> None:
    logits, choice = torch.zeros(2, 10), Choice.most_likely(2)
    with pytest.raises(ValueError, match="float32 rows"):
        choose_tokens(cpu_kernels, logits.double(), choice)
    with pytest.raises(ValueError, match="float32 rows"):
        choose_tokens(cpu_kernels, logits.T, Choice.most_likely(10))
    with pytest.raises(ValueError, match=r"float32 \[3\]"):
        choose_tokens(cpu_kernels, torch.zeros(3, 10), choice)
    columns, floats = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    rows = np.zeros(0, dtype=np.int64)
    nothing = Penalties(rows, columns, columns, columns, floats, floats, floats, columns)
    with pytest.raises(ValueError, match="int32 rows"):
        penalize(cpu_kernels, logits, torch.zeros(1, 1), nothing)
