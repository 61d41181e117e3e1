from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import psutil
import pytest

from taco_kernels.native.lookahead import CacheOptions, Mode
from taco_proto.config import SpeculationConfig
from taco_proto.errors import ConfigurationError
from taco_worker.speculation.lookahead.lookahead_config import (
    FILE_NAME,
    LookaheadConfig,
    cache_options,
    cache_tokens,
    read_config,
)

# The example of the published TACO documentation.
EXAMPLE = {
    "cache_mode": 2,
    "cache_size": 5000000,
    "copy_length": 7,
    "match_length": 2,
    "turbo_match_length": 7,
    "min_match_length": 2,
    "cell_max_size": 16,
    "voc_size": 200000,
    "max_seq_len": 32768,
    "eos_token_id": 2,
    "top_k": 1,
    "threshold": 2.0,
    "decay": 0.5,
    "is_hybrid": True,
    "is_debug": True,
    "log_interval": 3000,
    "target_parallelism": 512,
    "top_k_in_cell": 16,
    "token_paths_top_k": 2,
    "start_freq": 10.0,
    "num_threads": 8,
    "global_cache_switch": True,
}


def write(directory: Path, options: object) -> str:
    (directory / FILE_NAME).write_text(json.dumps(options))
    return str(directory)


def options_of(config: LookaheadConfig, **speculation: Any) -> CacheOptions:
    return cache_options(
        config,
        SpeculationConfig(**speculation),
        vocab_size=1000,
        max_model_len=512,
        eos_token_ids=(7, 8),
        max_num_seqs=4,
    )


def test_the_documented_example_is_read(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, EXAMPLE))
    assert config == LookaheadConfig(**EXAMPLE)  # type: ignore[arg-type]


def test_without_a_file_defaults_apply(tmp_path: Path) -> None:
    assert read_config(str(tmp_path)) == LookaheadConfig(token_paths_top_k=2)
    defaults = {name: getattr(LookaheadConfig(), name) for name in EXAMPLE}
    of_the_model = {"cache_size", "voc_size", "max_seq_len", "eos_token_id"}
    for name in EXAMPLE.keys() - of_the_model - {"is_debug", "token_paths_top_k"}:
        assert defaults[name] == EXAMPLE[name]


def test_there_are_two_paths_unless_a_mode_or_a_number_is_chosen(tmp_path: Path) -> None:
    def num_paths(options: object) -> int:
        return read_config(write(tmp_path, options)).token_paths_top_k

    assert num_paths({"copy_length": 5}) == 2
    assert num_paths({"cache_mode": 2}) == 1
    assert num_paths({"token_paths_top_k": 3}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell_size": 3}, "unknown option 'cell_size'"),
        ({"copy_length": "7"}, 'copy_length must be a whole number, not "7"'),
        ({"copy_length": 7.0}, "copy_length must be a whole number, not 7.0"),
        ({"copy_length": True}, "copy_length must be a whole number, not true"),
        ({"copy_length": None}, "copy_length must be a whole number, not null"),
        ({"copy_length": 64}, "copy_length must be 1 to 63, not 64"),
        ({"decay": "x"}, 'decay must be a number, not "x"'),
        ({"decay": float("nan")}, "decay must be 0.0 to 1.0, not nan"),
        ({"is_hybrid": 1}, "is_hybrid must be true or false, not 1"),
        ({"warmup_file": 3}, "warmup_file must be a string, not 3"),
        ({"cache_mode": 3}, "cache_mode must be 0 to 2, not 3"),
        ({"min_match_length": 8}, "min_match_length 8 is above turbo_match_length 7"),
        ({"cache_mode": 0, "warmup_file": "w"}, "warmup_file has no effect with cache_mode 0"),
        ({"global_cache_switch": False, "warmup_file": "w"}, "warmup_file has no effect"),
        ([], "it is not a JSON object"),
    ],
)
def test_a_bad_option_is_named_with_its_file(tmp_path: Path, options: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_config(write(tmp_path, options))
    assert message in str(caught.value)
    assert FILE_NAME in str(caught.value)


def test_invalid_json_and_a_missing_directory_are_errors(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ConfigurationError, match=f"cannot read .*{FILE_NAME}"):
        read_config(str(tmp_path))
    with pytest.raises(ConfigurationError, match="not found"):
        read_config(str(tmp_path / "none"))


# ---------------------------------------------------------------------- size


def test_capacity_comes_from_the_flag_then_the_file() -> None:
    total = psutil.virtual_memory().total
    assert cache_tokens(LookaheadConfig(cache_size=2000), 0.25) == int(0.25 * total) // 150
    assert cache_tokens(LookaheadConfig(cache_size=2000), None) == 2000
    assert cache_tokens(LookaheadConfig(), None) == min(5_000_000, int(0.15 * total) // 150)
    shorter = LookaheadConfig(turbo_match_length=3)  # contexts of 2 and 3
    assert cache_tokens(shorter, 0.25) == int(0.25 * total) // 70


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan"), 1e-9])
def test_an_invalid_memory_fraction_is_rejected(share: float) -> None:
    with pytest.raises(ConfigurationError, match="--cpu-decoding-memory-utilization"):
        cache_tokens(LookaheadConfig(), share)


def test_a_cache_larger_than_the_machine_is_rejected() -> None:
    with pytest.raises(
        ConfigurationError, match=f"{FILE_NAME}: cache_size 1000000000000 takes 150"
    ):
        cache_tokens(LookaheadConfig(cache_size=10**12), None)


# ---------------------------------------------------------------------- what the kernel is told


def test_every_option_reaches_the_cache() -> None:
    """Changing any option alone changes the cache's options (is_debug, log_interval, num_threads,
    ignore_prompt and warmup_file belong to the drafter: see test_lookahead_drafter.py)."""
    others = {"is_debug", "log_interval", "num_threads", "ignore_prompt", "warmup_file"}
    changes: dict[str, Any] = {
        "cache_mode": 1,
        "cache_size": 3000,
        "copy_length": 3,
        "match_length": 4,
        "turbo_match_length": 5,
        "min_match_length": 3,
        "cell_max_size": 8,
        "voc_size": 900,
        "max_seq_len": 100,
        "eos_token_id": 3,
        "top_k": 2,
        "threshold": 3.0,
        "decay": 0.1,
        "is_hybrid": False,
        "top_k_in_cell": 4,
        "token_paths_top_k": 3,
        "start_freq": 1.0,
        "global_cache_switch": False,
    }
    base: dict[str, Any] = {"token_paths_top_k": 2, "cache_size": 2000}
    unchanged = options_of(LookaheadConfig(**base))
    for name, value in changes.items():
        assert options_of(LookaheadConfig(**base | {name: value})) != unchanged, name
    raw = [options_of(LookaheadConfig(cache_mode=0, target_parallelism=n)) for n in (9, 99)]
    assert raw[0] != raw[1]
    known = {field.name for field in fields(LookaheadConfig)}
    assert known == changes.keys() | others | {"target_parallelism"}


def test_the_models_limits_apply_beside_the_options() -> None:
    options = options_of(LookaheadConfig(voc_size=200_000, max_seq_len=32_768))
    assert (options.vocab_size, options.max_len, options.eos_ids) == (1000, 512, (7, 8))
    assert options_of(LookaheadConfig(eos_token_id=2)).eos_ids == (2,)


def test_several_paths_switch_the_penalty_off_and_the_start_weight_on() -> None:
    one, two = (options_of(LookaheadConfig(cache_mode=0, token_paths_top_k=n)) for n in (1, 2))
    assert (one.target_parallelism, one.start_weight) == (512, 0.0)
    assert (two.target_parallelism, two.start_weight) == (0, 10.0)
    assert options_of(LookaheadConfig()).target_parallelism == 0  # Raw only


def test_raw_knows_no_table_and_matches_down_to_one_where_hybrid() -> None:
    options = options_of(LookaheadConfig(cache_mode=0, match_length=3))
    assert options.mode == Mode.RAW
    assert not options.has_table
    assert (options.raw_min, options.raw_max) == (1, 3)
    exact = options_of(LookaheadConfig(cache_mode=0, match_length=3, is_hybrid=False))
    assert (exact.raw_min, exact.raw_max) == (3, 3)
