from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cpu_kernels import NATIVE, kernels_of
from support.sampling_reference import Row, acceptable_tokens, changed_logits
from taco_kernels.sampling_metadata import NO_TOKEN
from taco_proto.logprobs import LogprobColumns
from taco_proto.sampling_params import SamplingParams
from taco_worker.devices.transfers import Transfers
from taco_worker.sampling.cpu_ops import CpuSampling
from taco_worker.sampling.logprobs import LogprobTable
from taco_worker.sampling.ops import SamplingOps
from taco_worker.sampling.sampler import NO_TOKEN_LEFT, SampledRows, SampledTokens, Sampler
from taco_worker.sampling.slot_params import SlotSamplingParams
from taco_worker.sampling.token_masks import TokenMasks, mask_of
from taco_worker.sampling.torch_ops import TorchSampling

EOS_TOKEN_IDS = [1, 2]
MAX_LEN = 48


DEVICES = ("torch", *NATIVE)


def ops_of(device: str) -> SamplingOps:
    return TorchSampling() if device == "torch" else CpuSampling(kernels_of(device, 2))


@pytest.fixture(params=DEVICES)
def ops(request: pytest.FixtureRequest) -> SamplingOps:
    return ops_of(request.param)


def sample(ops: SamplingOps, rows: list[Row], slots: list[int] | None = None) -> SampledTokens:
    """Run the sampler on a batch of `rows`, each in its own slot."""
    slots = slots or list(range(len(rows)))
    vocab_size = rows[0].logits.size
    columns = SlotSamplingParams(max(slots) + 1, vocab_size=vocab_size, eos_token_ids=EOS_TOKEN_IDS)
    # Entries past a sequence's end must not matter.
    token_ids = torch.randint(0, vocab_size, (max(slots) + 1, MAX_LEN), dtype=torch.int32)
    for slot, row in zip(slots, rows, strict=True):
        columns.set_row(slot, row.params, has_grammar=row.allowed is not None)
        token_ids[slot, : len(row.tokens)] = torch.tensor(row.tokens, dtype=torch.int32)
    logits = torch.from_numpy(np.stack([row.logits for row in rows]))
    sampled_rows = SampledRows(
        slots=np.array(slots, dtype=np.int32),
        num_prompt_tokens=np.array([len(row.prompt) for row in rows], dtype=np.int32),
        num_tokens=np.array([len(row.tokens) for row in rows], dtype=np.int32),
    )
    return Sampler(columns, token_ids, ops, Transfers(token_ids.device)).sample(
        logits, sampled_rows, masks=masks_of(rows)
    )


def masks_of(rows: list[Row]) -> TokenMasks | None:
    found = [(place, row.allowed) for place, row in enumerate(rows) if row.allowed is not None]
    if not found:
        return None
    bits = [mask_of(sorted(allowed), rows[0].logits.size) for _, allowed in found]
    places = np.array([place for place, _ in found])
    return TokenMasks(places, np.stack(bits), np.zeros(places.size, dtype=np.bool_))


def chosen(ops: SamplingOps, rows: list[Row], slots: list[int] | None = None) -> list[int]:
    return [int(token_id) for token_id in sample(ops, rows, slots).token_ids]


def columns_of(table: LogprobTable) -> LogprobColumns:
    return table.columns(iter(tensor.cpu() for tensor in table.tensors()))


def make_row(params: SamplingParams, seed: int = 0, vocab_size: int = 100) -> Row:
    rng = np.random.default_rng(seed)
    return Row(
        params=params,
        prompt=rng.integers(0, vocab_size, 12).tolist(),
        output=rng.integers(0, vocab_size, 9).tolist(),
        logits=(rng.standard_normal(vocab_size) * 3).astype(np.float32),
    )


@st.composite
def sampling_params(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    token_ids = st.integers(0, vocab_size + 3)
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0, 50.0])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9])),
        top_k=draw(st.sampled_from([-1, -1, 1, 3, 2 * vocab_size])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, -2.0, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, -1.0, 0.7])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.5, 1.8])),
        no_repeat_ngram_size=draw(st.sampled_from([0, 0, 1, 2, 3])),
        min_tokens=draw(st.sampled_from([0, 0, 4, 15])),
        stop_token_ids=draw(st.lists(token_ids, max_size=3)),
        ignore_eos=draw(st.booleans()),
        logit_bias=draw(st.dictionaries(token_ids, st.floats(-5, 5), max_size=4)),
        allowed_token_ids=draw(st.none() | st.lists(token_ids, min_size=1, max_size=9)),
        bad_words_token_ids=draw(st.lists(st.lists(token_ids, min_size=1, max_size=3), max_size=6)),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
    )


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    # Around the sampler's group sizes; small vocabularies make repeats and ties likely.
    vocab_size = draw(st.sampled_from([7, 64, 100, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    grid = draw(st.sampled_from([0.0, 0.5]))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        logits = rng.standard_normal(vocab_size) * rng.choice([0.5, 3.0])
        if grid:
            logits = np.round(logits / grid) * grid
        # Never a whole vocabulary: n-grams of size 1 would ban every token.
        alphabet = rng.permutation(vocab_size)[: max(2, vocab_size // 2)]
        rows.append(
            Row(
                params=draw(sampling_params(vocab_size)),
                prompt=rng.choice(alphabet, draw(st.integers(1, 20))).tolist(),
                output=rng.choice(alphabet, draw(st.integers(0, 20))).tolist(),
                logits=logits.astype(np.float32),
                allowed=draw(st.none() | st.frozensets(st.integers(0, vocab_size - 1))),
            )
        )
    return rows


# Batches take longer to draw than to sample, so that each goes to all devices.
@given(batches())
@settings(max_examples=300, deadline=None)
def test_every_row_of_a_mixed_batch_matches_the_reference(rows: list[Row]) -> None:
    has_token = [np.isfinite(changed_logits(row, EOS_TOKEN_IDS)).any() for row in rows]
    acceptable = [
        acceptable_tokens(row, EOS_TOKEN_IDS) if has else None
        for row, has in zip(rows, has_token, strict=True)
    ]
    for device in DEVICES:
        for tokens, token_id in zip(acceptable, chosen(ops_of(device), rows), strict=True):
            assert tokens is None or token_id in tokens, device


@given(batches(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_row_does_not_depend_on_the_other_rows_nor_on_its_slot(
    rows: list[Row], random: Random
) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    kept = order[: random.randint(1, len(order))]
    slots = random.sample(range(10), len(kept))
    for device in DEVICES:
        ops = ops_of(device)
        together = chosen(ops, rows)
        assert chosen(ops, [rows[i] for i in kept], slots) == [together[i] for i in kept], device


def test_rows_are_independent_when_threads_share_a_large_batch(ops: SamplingOps) -> None:
    params = [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=1.3, top_p=0.95, seed=2),
        SamplingParams(temperature=0.7, top_k=50, min_p=0.001, seed=3),
        SamplingParams(temperature=0.0, seed=4),
    ]
    rows = [make_row(params[i % 4], seed=i, vocab_size=20_011) for i in range(48)]
    assert chosen(ops, rows) == [chosen(ops, [row])[0] for row in rows]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.5, top_k=1, seed=3),
        SamplingParams(temperature=1.5, top_p=1e-9, seed=3),
        SamplingParams(temperature=1.5, min_p=1.0, seed=3),
        SamplingParams(temperature=1.1e-5, seed=3),
    ],
)
def test_the_narrowest_filter_is_greedy(ops: SamplingOps, params: SamplingParams) -> None:
    row = make_row(params)
    assert chosen(ops, [row]) == [int(row.logits.argmax())]


def test_a_wide_nucleus_of_a_flat_distribution_reaches_beyond_the_first_candidates(
    ops: SamplingOps,
) -> None:
    """Of 1,000 nearly equal tokens, top_p 0.9 keeps 900: the most likely ones."""
    logits = np.linspace(0.0, 1e-2, 1000).astype(np.float32)
    rows = [Row(SamplingParams(top_p=0.9, seed=seed), [3], [], logits) for seed in range(2000)]
    tokens = chosen(ops, rows)
    assert min(tokens) == pytest.approx(100, abs=3)


def test_a_mask_follows_bias_and_penalties_and_leaves_log_probabilities(ops: SamplingOps) -> None:
    params = SamplingParams(
        temperature=0, seed=0, logit_bias={7: 50.0, 5: 9.0}, presence_penalty=2.0, logprobs=2
    )
    logits = np.zeros(40, dtype=np.float32)
    logits[[33, 34]] = [9.5, 8.0]
    allowed = frozenset({5, 33, 34, 39})
    row = Row(params, [3], [33], logits, allowed)
    found = sample(ops, [row, Row(params, [3], [33], logits)])
    assert found.token_ids.tolist() == [5, 7]
    assert found.logprobs is not None
    table = columns_of(found.logprobs)
    expected = torch.from_numpy(logits).log_softmax(-1)
    for token_ids, values, _ in table.rows():
        assert token_ids[1:] == [33, 34]
        assert values == pytest.approx(expected[token_ids].tolist(), abs=1e-5)
    nothing = Row(params, [3], [33], logits, frozenset())
    assert chosen(ops, [nothing, row]) == [NO_TOKEN, 5]


def test_min_tokens_suppresses_end_tokens(ops: SamplingOps) -> None:
    logits = np.zeros(10, dtype=np.float32)
    logits[[1, 5]] = [9.0, 8.0]  # an EOS token, then a stop token
    params = SamplingParams(temperature=0, seed=0, min_tokens=2, stop_token_ids=[5])
    assert chosen(ops, [Row(params, [3], [4], logits)]) == [0]
    assert chosen(ops, [Row(params, [3], [4, 4], logits)]) == [1]
    ignoring = params.with_updates(ignore_eos=True)
    assert chosen(ops, [Row(ignoring, [3], [4], logits)]) == [1]
    with_grammar = Row(ignoring, [3], [4], logits, frozenset(range(10)))
    assert chosen(ops, [with_grammar]) == [0], "the end of its text ends the sequence"


def test_a_bad_word_is_banned_where_the_output_ends_with_its_beginning(ops: SamplingOps) -> None:
    logits = np.zeros(10, dtype=np.float32)
    logits[[7, 5]] = [9.0, 8.0]
    params = SamplingParams(temperature=0, seed=0, bad_words_token_ids=[[3, 4, 7], [2, 7]])
    cases = [([3], [4], 7), ([9], [3, 4], 5), ([9], [4, 3, 4], 5), ([9], [3, 4, 4], 7)]
    rows = [Row(params, prompt, output, logits) for prompt, output, _ in cases]
    assert chosen(ops, rows) == [expected for *_, expected in cases]
    # Of several words with the same last token one match suffices; a word of one token is always
    # banned.
    assert chosen(ops, [Row(params, [9], [2], logits)]) == [5]
    alone = params.with_updates(bad_words_token_ids=[[3, 7], [7]])
    assert chosen(ops, [Row(alone, [9], [], logits)]) == [5]


def test_only_allowed_tokens_are_chosen_even_where_all_of_them_are_banned(
    ops: SamplingOps,
) -> None:
    logits = np.arange(10, dtype=np.float32)
    params = SamplingParams(temperature=0, seed=0, allowed_token_ids=[1, 4])
    assert chosen(ops, [Row(params, [3], [], logits)]) == [4]
    # EOS (1) is too early, and 4 is a bad word.
    banned = params.with_updates(min_tokens=5, bad_words_token_ids=[[4]])
    assert chosen(ops, [Row(banned, [3], [], logits)])[0] in {1, 4}
    hot = banned.with_updates(temperature=1e6)
    rows = [Row(hot.with_updates(seed=seed), [3], [], logits) for seed in range(40)]
    assert set(chosen(ops, rows)) == {1, 4}


def test_a_row_with_all_tokens_banned_does_not_affect_others(ops: SamplingOps) -> None:
    everything = list(range(7))
    banned = SamplingParams(temperature=1.0, no_repeat_ngram_size=1, seed=5)
    rows = [make_row(SamplingParams(temperature=1.0, seed=seed), seed, 7) for seed in range(3)]
    alone = chosen(ops, rows)
    spoilt = Row(banned, everything, [], rows[0].logits)
    greedy = Row(banned.with_updates(temperature=0.0), everything, [], rows[0].logits)
    mixed = chosen(ops, [rows[0], spoilt, rows[1], greedy, rows[2]])
    assert [mixed[0], mixed[2], mixed[4]] == alone
    assert mixed[1] == NO_TOKEN_LEFT
    assert mixed[3] == NO_TOKEN_LEFT


def test_logprobs_are_those_of_the_raw_logits(ops: SamplingOps) -> None:
    params = SamplingParams(
        temperature=2.0,
        logit_bias={4: 50.0},
        repetition_penalty=1.5,
        presence_penalty=1.0,
        top_k=2,
        seed=0,
    )
    counts = [3, None, 0, 5]
    rows = [
        make_row(params.with_updates(logprobs=count, seed=i), seed=i)
        for i, count in enumerate(counts)
    ]
    sampled = sample(ops, rows)
    assert sampled.logprobs is not None
    entries = list(columns_of(sampled.logprobs).rows())
    assert len(entries) == len(rows)
    for row, token_id, count, (ids, values, ranks) in zip(
        rows, sampled.token_ids.tolist(), counts, entries, strict=True
    ):
        if count is None:
            assert (ids, values, ranks) == ([], [], [])
            continue
        logits = row.logits.astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        best = np.argsort(-expected)[:count]
        assert ids == [token_id, *best.tolist()]
        assert values == pytest.approx(expected[ids], abs=1e-5)
        assert ranks == [int((expected > expected[token_id]).sum()) + 1, *range(1, count + 1)]


def test_logprobs_only_if_requested(ops: SamplingOps) -> None:
    assert sample(ops, [make_row(SamplingParams(temperature=0, seed=0))]).logprobs is None


def test_more_logprobs_than_the_vocabulary_gives_all_of_it(ops: SamplingOps) -> None:
    params = SamplingParams(temperature=0, logprobs=50, seed=0)
    table = sample(ops, [make_row(params, vocab_size=7)]).logprobs
    assert table is not None
    logprobs = columns_of(table)
    assert logprobs.num_entries.tolist() == [8]
    assert sorted(logprobs.token_ids[1:]) == list(range(7))


def test_listed_tokens_replace_the_most_likely_ones(ops: SamplingOps) -> None:
    lists: list[tuple[int, ...]] = [(5, 99, 0), (), (7,), tuple(range(40)), ()]
    counts = [0, 2, 6, None, 0]
    rows = [
        make_row(SamplingParams(logprobs=count, logprob_token_ids=ids, seed=i), seed=i)
        for i, (ids, count) in enumerate(zip(lists, counts, strict=True))
    ]
    sampled = sample(ops, [*rows, make_row(SamplingParams(seed=9))])
    assert sampled.logprobs is not None
    entries = list(columns_of(sampled.logprobs).rows())
    assert entries.pop() == ([], [], [])
    for row, listed, count, (ids, values, ranks), chosen_id in zip(
        rows, lists, counts, entries, sampled.token_ids.tolist(), strict=False
    ):
        expected = torch.log_softmax(torch.from_numpy(row.logits).double(), dim=0).numpy()
        best = np.argsort(-expected, kind="stable")[: count or 0]
        assert ids == [chosen_id, *(listed or best)]
        assert values == pytest.approx(expected[ids], abs=1e-5)
        assert ranks == [int((expected > expected[token_id]).sum()) + 1 for token_id in ids]


def test_beams_get_the_changed_log_probabilities(ops: SamplingOps) -> None:
    """Those of transformers: what follows the normalization changes them, and none is drawn."""
    changes: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"temperature": 2.5},
        {"logit_bias": {3: 2.0, 7: -4.0}},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 1},
        {"allowed_token_ids": [1, 4, 5, 6, 40], "min_tokens": 12},
    ]
    rows = [
        make_row(SamplingParams(use_beam_search=True, logprobs=6, seed=9, **change), seed)
        for seed, change in enumerate(changes)
    ]
    rows.insert(2, make_row(SamplingParams(seed=3, logit_bias={5: 50.0}, logprobs=2), 50))
    rows.insert(4, make_row(SamplingParams(seed=3), 51))
    result = sample(ops, rows)
    assert result.logprobs is not None
    found = list(columns_of(result.logprobs).rows())
    assert found[4] == ([], [], [])
    for row, token, (ids, values, _) in zip(rows, result.token_ids.tolist(), found, strict=True):
        if not row.params.use_beam_search:
            continue
        temperature = row.params.temperature or 1.0
        logprobs = torch.log_softmax(torch.from_numpy(row.logits) / temperature, -1)
        expected = changed_logits(
            Row(row.params, row.prompt, row.output, logprobs.numpy()), EOS_TOKEN_IDS
        )
        best = np.argsort(-expected, kind="stable")[:6]
        assert token == ids[0] == best[0]
        finite = np.isfinite(expected[best])
        assert ids[1:][: finite.sum()] == best[finite].tolist()
        assert values[1:] == pytest.approx(expected[best].tolist(), abs=1e-4)
    own = torch.log_softmax(torch.from_numpy(rows[2].logits), -1)
    assert found[2][1][1:] == pytest.approx(own.topk(2).values.tolist(), abs=1e-5)
