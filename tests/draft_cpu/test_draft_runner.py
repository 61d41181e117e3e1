"""Drafts are the draft model's own greedy continuation, whatever was drafted before."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from support.checkpoints import make_checkpoint
from support.drafting import Ask, draft_request, drafts_of
from taco_demo.locate import find_model
from taco_draft import draft_runner
from taco_draft.draft_runner import DraftRunner
from taco_proto.config import DrafterConfig, ModelConfig
from taco_proto.drafts import DraftRequest
from taco_proto.errors import ConfigurationError

PROMPTS = ([5, 17, 300, 42, 9, 77], [250, 3, 3, 99], [8], list(range(40, 75)))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DrafterConfig:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("llama"))
    model = ModelConfig(model=str(checkpoint), quantization="none")
    return DrafterConfig(model=model, num_threads=1, max_num_seqs=8, num_blocks=64)


@pytest.fixture(scope="module")
def oracle(config: DrafterConfig) -> transformers.PreTrainedModel:
    return load_oracle(Path(config.model.model))


@pytest.fixture(scope="module")
def loaded(config: DrafterConfig) -> DraftRunner:
    return DraftRunner(config)


@pytest.fixture
def runner(loaded: DraftRunner) -> DraftRunner:
    loaded.reset()
    return loaded


def load_oracle(checkpoint: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


def greedy(
    model: transformers.PreTrainedModel, tokens: Sequence[int], num_tokens: int
) -> list[int]:
    tokens = list(tokens)
    with torch.inference_mode():
        for _ in range(num_tokens):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[-num_tokens:]


def ask(runner: DraftRunner, *rows: Ask, left: Sequence[int] = ()) -> Mapping[int, list[int]]:
    return drafts_of(runner.draft(draft_request(*rows, left=left)))


def test_info_describes_the_draft_model(config: DrafterConfig) -> None:
    model = replace(config.model, max_model_len=100, served_model_names=("small",))
    info = DraftRunner(replace(config, model=model, name="d7")).info
    assert (info.name, info.model, info.vocab_size, info.max_model_len) == ("d7", "small", 384, 100)


def test_rows_that_want_different_numbers_of_drafts_get_the_oracles_tokens(
    runner: DraftRunner, oracle: transformers.PreTrainedModel
) -> None:
    wanted = (3, 7, 1, 5)
    rows = [
        Ask(10 + row, 0, prompt, count)
        for row, (prompt, count) in enumerate(zip(PROMPTS, wanted, strict=True))
    ]
    drafts = ask(runner, *rows)
    assert drafts == {
        10 + row: greedy(oracle, prompt, count)
        for row, (prompt, count) in enumerate(zip(PROMPTS, wanted, strict=True))
    }


def test_every_prefix_of_a_text_is_continued_as_the_oracle_does(
    runner: DraftRunner, oracle: transformers.PreTrainedModel
) -> None:
    """The text differs from the model's continuation, so that every draft is rejected."""
    text = PROMPTS[3]
    for end in range(1, len(text) + 1):
        new = text[end - 1 : end]
        assert ask(runner, Ask(1, end - 1, new, 3)) == {1: greedy(oracle, text[:end], 3)}


def test_the_demo_pairs_draft_model_drafts_what_it_would_write(tmp_path: Path) -> None:
    directory = find_model("demo-draft")
    assert directory is not None
    model = ModelConfig(model=str(directory), dtype="float32", quantization="none")
    runner = DraftRunner(DrafterConfig(model=model, num_threads=1, num_blocks=16))
    prompt = list(range(100, 140))
    assert ask(runner, Ask(1, 0, prompt, 8)) == {1: greedy(load_oracle(directory), prompt, 8)}


class Sequences:
    """The scheduler's side of some sequences: accepts and rejects drafts at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.tokens = {
            number: self._some_tokens(12) for number in range(self._random.randint(1, 5))
        }
        self._num_sent = dict.fromkeys(self.tokens, 0)

    def rows(self) -> list[Ask]:
        """Some of the sequences, each with its tokens since the last request."""
        rows = []
        for number, tokens in self.tokens.items():
            if self._random.random() < 0.25:
                continue
            # It may send again what is known already.
            num_known = max(0, self._num_sent[number] - self._random.choice((0, 0, 0, 1, 4)))
            rows.append(Ask(number, num_known, tokens[num_known:], self._random.randrange(1, 6)))
            self._num_sent[number] = len(tokens)
        self._random.shuffle(rows)
        return rows

    def verify(self, drafts: Mapping[int, list[int]]) -> None:
        """Each sequence accepts some of its drafts and gets one or more other tokens."""
        for number, tokens in self.tokens.items():
            row = drafts.get(number, [])
            tokens += row[: self._random.randint(0, len(row))] + self._some_tokens(3)

    def _some_tokens(self, most: int) -> list[int]:
        return [self._random.randrange(384) for _ in range(self._random.randint(1, most))]


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from([3, 16, 512]))
@pytest.mark.parametrize("small_pool", [False, True])
def test_earlier_drafts_rejections_and_evictions_change_no_draft(
    runners: tuple[DraftRunner, DraftRunner, DraftRunner],
    small_pool: bool,
    seed: int,
    budget: int,
) -> None:
    fresh, large, small = runners
    runner = small if small_pool else large
    runner.reset()
    sequences = Sequences(seed)
    for _ in range(8):
        rows = sequences.rows()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draft_runner, "_MAX_CATCH_UP_TOKENS", budget)
            drafts = ask(runner, *rows)
        for row in rows:
            if row.sequence in drafts:
                fresh.reset()
                again = replace(row, num_known=0, new=sequences.tokens[row.sequence])
                assert ask(fresh, again) == {row.sequence: drafts[row.sequence]}
        if budget == 512 and not small_pool:
            assert set(drafts) == {row.sequence for row in rows}
        sequences.verify(drafts)


@pytest.fixture(scope="module")
def runners(config: DrafterConfig) -> tuple[DraftRunner, DraftRunner, DraftRunner]:
    """The one that is asked afresh each time, one with blocks for all, and one without.

    With the CPU kernels of int8, whose bits must not depend on what else a step computes.
    """
    model = replace(config.model, quantization=None, dtype="bfloat16", max_model_len=112)
    config = replace(config, model=model)
    fresh, large, small = (DraftRunner(replace(config, num_blocks=n)) for n in (7, 35, 7))
    return fresh, large, small


def test_a_long_prompt_is_read_in_pieces_beside_the_others(
    runner: DraftRunner, oracle: transformers.PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_runner, "_MAX_CATCH_UP_TOKENS", 16)
    long, short = PROMPTS[3], [*PROMPTS[0], 1, 2]
    rows = [Ask(1, 0, long, 2), Ask(2, 0, short[:6], 2)]
    expected_long = greedy(oracle, long, 2)
    assert ask(runner, *rows) == {2: greedy(oracle, short[:6], 2)}  # and 10 of the 35
    rows = [Ask(1, 35, [], 2), Ask(2, 6, short[6:7], 2)]
    assert ask(runner, *rows) == {2: greedy(oracle, short[:7], 2)}  # 25 of the 35
    rows = [Ask(1, 35, [], 2), Ask(2, 7, short[7:], 2)]
    assert ask(runner, *rows) == {1: expected_long, 2: greedy(oracle, short, 2)}


def test_a_row_without_drafts_only_reads_its_prompt(
    runner: DraftRunner, oracle: transformers.PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(runner, Ask(1, 0, PROMPTS[3], 0)) == {}
    # All but the last token has KV: with room for one token more the row is not left out.
    monkeypatch.setattr(draft_runner, "_MAX_CATCH_UP_TOKENS", 1)
    assert ask(runner, Ask(1, 35, [], 2)) == {1: greedy(oracle, PROMPTS[3], 2)}


def test_sequences_that_left_and_a_reset_are_forgotten(runner: DraftRunner) -> None:
    ask(runner, Ask(1, 0, PROMPTS[0], 1), Ask(2, 0, PROMPTS[1], 1))
    rows = Ask(1, 6, [3], 1), Ask(2, 4, [3], 1)
    assert set(ask(runner, *rows, left=[1, 77])) == {2}
    runner.reset()
    assert ask(runner, Ask(2, 5, [3], 1)) == {}


@pytest.mark.parametrize(
    "row",
    [
        Ask(1, 3, [5], 2),  # its first tokens never came
        Ask(2, 7, [5], 2),  # nor did all of these
        Ask(1, 0, [], 2),
        Ask(1, 0, [384], 2),
        Ask(1, 0, [-1], 2),
        Ask(1, 0, [5] * 512, 2),  # no room for a draft
        Ask(1, 0, [5], -1),
        Ask(1, -1, [5, 5], 2),
    ],
)
def test_invalid_rows_are_omitted_and_do_not_affect_others(
    runner: DraftRunner, oracle: transformers.PreTrainedModel, row: Ask
) -> None:
    ask(runner, Ask(2, 0, PROMPTS[0], 3))
    assert ask(runner, row, Ask(3, 0, PROMPTS[1], 2)) == {3: greedy(oracle, PROMPTS[1], 2)}


def test_drafts_end_where_the_model_does(
    runner: DraftRunner, oracle: transformers.PreTrainedModel
) -> None:
    prompt = [5] * 509
    assert ask(runner, Ask(1, 0, prompt, 10**9)) == {1: greedy(oracle, prompt, 3)}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_known": np.zeros(2, dtype=np.int32)},
        {"num_drafts": np.zeros(0, dtype=np.int32)},
        {"num_tokens": np.array([4], dtype=np.int32)},
        {"num_tokens": np.array([-1], dtype=np.int32)},
        {"token_ids": np.zeros(9, dtype=np.int32)},
    ],
)
def test_inconsistent_columns_are_rejected(
    runner: DraftRunner, changes: dict[str, np.ndarray]
) -> None:
    request: DraftRequest = replace(draft_request(Ask(1, 0, [5, 6], 3)), **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a draft request"):
        runner.draft(request)


def test_falls_back_to_torch_without_the_kernels(
    config: DrafterConfig,
    oracle: transformers.PreTrainedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taco_draft.model_loading.start_cpu_kernels", lambda num_threads: None)
    runner = DraftRunner(replace(config, model=replace(config.model, quantization=None)))
    assert ask(runner, Ask(1, 0, PROMPTS[0], 3)) == {1: greedy(oracle, PROMPTS[0], 3)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "/nowhere"}, "/nowhere"),
        ({"max_model_len": 513}, "more than the 512 tokens"),
        ({"quantization": "int3"}, "unknown quantization 'int3'"),
    ],
)
def test_loading_errors_are_one_line(
    config: DrafterConfig, changes: dict[str, object], message: str
) -> None:
    model = replace(config.model, **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=message):
        DraftRunner(replace(config, model=model))
