from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cpu_kernels import NATIVE, kernels_of
from taco_kernels import library
from taco_kernels.native.cores import available_cores
from taco_kernels.native.lookahead import MAX_TREE, NUM_CLASSES, CacheOptions
from taco_proto.config import SpeculationConfig
from taco_proto.errors import ConfigurationError
from taco_proto.steps import EMPTY, IntArray, JoinedSequences
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.lookahead import lookahead_drafter
from taco_worker.speculation.lookahead.lookahead_config import FILE_NAME
from taco_worker.speculation.lookahead.lookahead_drafter import (
    LookaheadDrafter,
    make_lookahead,
    make_ngram,
)

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "max_model_len": 512,
    "eos_token_ids": (2,),
    "max_num_seqs": 4,
}


@pytest.fixture(scope="module", autouse=True)
def built_library() -> None:
    kernels_of(NATIVE[0], 1)


def make(
    directory: Path, /, speculation: dict[str, Any] | None = None, **options: Any
) -> LookaheadDrafter:
    (directory / FILE_NAME).write_text(json.dumps({"cache_size": 2000, **options}))
    config = SpeculationConfig(lookahead_config_dir=str(directory), **speculation or {})
    return make_lookahead(config, **SIZES)


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int32)


def join(
    drafter: Drafter, slot: int, prompt: list[int], *output: int, salts: tuple[str, ...] = ()
) -> None:
    tokens = [*prompt, *output]
    drafter.join(
        JoinedSequences(
            slots=ints(slot),
            num_prompt_tokens=ints(len(prompt)),
            num_tokens=ints(len(tokens)),
            num_computed_tokens=ints(0),
            token_ids=ints(*tokens),
            num_blocks=ints(0),
            block_ids=EMPTY,
            sampling=(),
            cache_salts=salts,
        )
    )


def drafts(drafter: Drafter, slot: int = 0) -> list[int]:
    return drafter.draft(ints(slot), ints(MAX_TREE)).token_ids.tolist()


def test_the_cache_follows_the_batch(tmp_path: Path) -> None:
    drafter: Drafter = make(tmp_path, cache_mode=2)
    assert (drafter.name, drafter.hidden_layers) == ("lookahead", None)
    assert drafter.priors.shape == (NUM_CLASSES,)
    assert ((drafter.priors > 0) & (drafter.priors < 1)).all()
    join(drafter, 0, [5, 6, 7, 8])
    join(drafter, 1, [5, 6], 9)
    drafter.append(ints(0, 1), ints(2, 1), ints(5, 6, 5))
    trees = drafter.draft(ints(1, 0), ints(4, 4))
    assert trees.num_nodes.tolist() == [4, 4]
    assert trees.token_ids.tolist() == [6, 9, 5, 6, 7, 8, 5, 6]  # slot 1: Raw, from its 5 alone
    drafter.leave(ints(0))
    assert drafts(drafter) == []
    join(drafter, 0, [5], 6)  # the cache keeps what it learned
    assert drafts(drafter)[:2] == [7, 8]
    drafter.clear()
    assert drafts(drafter) == []


def test_salts_keep_tenants_apart(tmp_path: Path) -> None:
    drafter = make(tmp_path)
    join(drafter, 0, [5, 6, 7, 8], salts=("tenant",))
    join(drafter, 1, [5], 6)
    join(drafter, 2, [5], 6, salts=("tenant",))
    assert drafts(drafter, 1) == []
    assert drafts(drafter, 2) == [7, 8]


@pytest.mark.parametrize(
    ("options", "speculation", "expected"),
    [
        ({}, {}, 14),
        ({"cache_mode": 1, "top_k": 3}, {}, 7),
        ({"cache_mode": 0, "top_k": 3, "token_paths_top_k": 4}, {}, 21),
        ({"copy_length": 4}, {}, 8),
        ({"copy_length": 60}, {}, MAX_TREE),
        ({}, {"num_speculative_tokens": 5}, 14),  # the option limits draft workers only
    ],
)
def test_trees_have_a_maximum_size(
    tmp_path: Path, options: dict[str, Any], speculation: dict[str, Any], expected: int
) -> None:
    drafter = make(tmp_path, speculation, **options)
    assert drafter.max_draft_tokens == expected
    join(drafter, 0, [5, 6, 7] * 50)
    assert len(drafts(drafter)) <= expected


@pytest.mark.parametrize("by_flag", [True, False])
def test_prompts_can_be_ignored(tmp_path: Path, by_flag: bool) -> None:
    speculation = {"lookahead_ignores_prompts": by_flag}
    drafter = make(tmp_path, speculation, ignore_prompt=not by_flag)
    join(drafter, 0, [5, 6, 7, 5, 6])
    join(drafter, 1, [5], 6)
    assert drafts(drafter, 0) == drafts(drafter, 1) == []


def test_threads_are_no_more_than_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []

    def load(num_threads: int) -> library.CpuKernels:
        wanted.append(num_threads)
        return library.load(num_threads)

    monkeypatch.setattr(lookahead_drafter, "load", load)
    num_cores = len(available_cores().cpus)
    make(tmp_path, num_threads=1)
    make(tmp_path, num_threads=1000)
    assert wanted == [1, num_cores]


def test_metrics_are_kept_per_request_and_logged_if_enabled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taco.worker")
    for is_debug, num_lines in ((False, 0), (True, 1)):
        drafter = make(tmp_path, is_debug=is_debug, log_interval=2)
        join(drafter, 0, [5, 6])
        for _ in range(3):
            drafter.metrics.observe(ints(0), ints(2), ints(1))
        assert len(caplog.records) == num_lines
        drafter.leave(ints(0))
        join(drafter, 0, [5, 6])
        drafter.metrics.observe(ints(0), ints(2), ints(1))
        drafter.clear()
        assert drafter.metrics.values()["num_iters"] == 2.0  # of two requests: 3, and 1
        caplog.clear()


# ---------------------------------------------------------------------- warm-up


def test_a_warm_up_file_is_learned_at_start(tmp_path: Path) -> None:
    entries = [{"prompt": [5, 6], "output": [7, 8]}, {"prompt": [], "output": [20, 21, 22]}]
    (tmp_path / "warm.json").write_text(json.dumps(entries))
    drafter = make(tmp_path, warmup_file="warm.json")
    join(drafter, 0, [5], 6)
    join(drafter, 1, [20], 21)
    join(drafter, 2, [20], 21, salts=("tenant",))
    assert [drafts(drafter, slot) for slot in range(3)] == [[7, 8], [22], []]
    (tmp_path / "warm.json").write_text("[]")
    make(tmp_path, warmup_file="warm.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "it is not a JSON list"),
        ('[{"prompt": [], "output": []}, 3]', "entry 1: it must hold prompt and output"),
        ('[{"prompt": []}]', "entry 0: it must hold prompt and output"),
        ('[{"prompt": [], "output": [], "x": 1}]', "entry 0: it must hold prompt and output"),
        ('[{"prompt": ["a"], "output": []}]', "entry 0: prompt must be a list of token ids"),
        ('[{"prompt": [], "output": 3}]', "entry 0: output must be a list of token ids"),
        ('[{"prompt": [true], "output": []}]', "entry 0: prompt must be a list of token ids"),
        ('[{"prompt": [], "output": [1000]}]', "entry 0: output must be a list of token ids below"),
    ],
)
def test_a_malformed_warm_up_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "warm.json").write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        make(tmp_path, warmup_file="warm.json")
    assert message in str(caught.value)
    assert "warm.json" in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot read warmup_file"):
        make(tmp_path, warmup_file="missing.json")


# ---------------------------------------------------------------------- ngram


def make_ngrams(**speculation: Any) -> LookaheadDrafter:
    return make_ngram(SpeculationConfig(**speculation), **SIZES)


def test_ngram_is_prompt_lookup() -> None:
    drafter = make_ngrams(ngram_max=3, ngram_min=2, num_speculative_tokens=4)
    assert (drafter.name, drafter.max_draft_tokens) == ("ngram", 4)
    assert drafter.cache.table_bytes == 0
    join(drafter, 0, [5, 6, 7, 8, 9, 10, 20, 6, 7, 30, 5, 6, 7])
    assert drafts(drafter) == [8, 9, 10, 20]  # the longest match, not the latest
    join(drafter, 0, [5, 6, 7, 5])
    assert drafts(drafter) == []  # one token is no match
    assert make_ngrams(ngram_max=3).max_draft_tokens == 5
    join(shortest := make_ngrams(ngram_max=3), 0, [5, 6, 7, 5])
    assert drafts(shortest)[:2] == [6, 7]


@pytest.mark.parametrize("ngram_max", [1, 4, 16])
def test_ngram_capacity_covers_all_sequences_at_their_longest(ngram_max: int) -> None:
    drafter = make_ngrams(ngram_max=ngram_max)
    text = [*range(3, 3 + 490), *range(3, 3 + 16)]
    for slot in range(SIZES["max_num_seqs"]):
        join(drafter, slot, text)
    for slot in range(SIZES["max_num_seqs"]):
        assert drafts(drafter, slot) == [19, 20, 21, 22, 23]


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        ({"ngram_max": 2, "ngram_min": 3}, "--ngram-prompt-lookup-min 3 and"),
        ({"ngram_max": 17}, "--ngram-prompt-lookup-max 17"),
        ({"ngram_max": 2, "num_speculative_tokens": 64}, "--num-speculative-tokens"),
    ],
)
def test_invalid_ngram_lengths_are_rejected(speculation: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_ngrams(**speculation)
    assert message in str(caught.value)


# ---------------------------------------------------------------------- starting


def test_a_missing_library_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(num_threads: int) -> library.CpuKernels:
        library.load_library(Path("/nowhere/libtaco_kernels.so"))
        raise AssertionError

    monkeypatch.setattr(lookahead_drafter, "load", load)
    with pytest.raises(ConfigurationError, match=r"build it with `python -m taco_kernels"):
        make_ngrams(ngram_max=2)


def test_a_table_beyond_the_address_space_is_rejected() -> None:
    options = CacheOptions(num_slots=1, max_len=512, vocab_size=1000, eos_ids=(), num_tokens=10**13)
    with pytest.raises(ConfigurationError, match="the lookahead cache cannot start: cannot map"):
        LookaheadDrafter("lookahead", options)
