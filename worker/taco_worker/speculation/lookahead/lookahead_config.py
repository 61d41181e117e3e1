"""Reads the options of the lookahead cache from lookahead_cache_config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from taco_common.json_file import JsonFileError, read_json_object
from taco_kernels.native.lookahead import (
    MAX_CELL,
    MAX_MATCH,
    MAX_PATHS,
    MAX_TREE,
    CacheOptions,
    Mode,
    bytes_per_token,
)
from taco_proto.config import SpeculationConfig
from taco_proto.errors import ConfigurationError

FILE_NAME = "lookahead_cache_config.json"

# Default capacity in tokens, limited to this fraction of the machine's memory.
_DEFAULT_TOKENS = 5_000_000
_DEFAULT_SHARE = 0.15
_LEAST_TOKENS = 1000
_MOST = 2**31 - 1
_MOST_WEIGHT = 4095.0  # maximum weight of a token in a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadConfig:
    """The options by their names in the file; docs/lookahead.md describes them.

    None: the model, the machine or another option determines the value.
    """

    cache_mode: int = 2
    cache_size: int | None = None
    copy_length: int = 7
    match_length: int = 2
    turbo_match_length: int = 7
    min_match_length: int = 2
    cell_max_size: int = 16
    voc_size: int | None = None
    max_seq_len: int | None = None
    eos_token_id: int | None = None
    top_k: int = 1
    threshold: float = 2.0
    decay: float = 0.5
    is_hybrid: bool = True
    is_debug: bool = False
    log_interval: int = 3000
    target_parallelism: int = 512
    top_k_in_cell: int = 16
    token_paths_top_k: int = 1
    start_freq: float = 10.0
    num_threads: int = 8
    global_cache_switch: bool = True
    ignore_prompt: bool = False
    warmup_file: str | None = None

    @property
    def has_table(self) -> bool:
        return self.cache_mode != Mode.RAW and self.global_cache_switch


# Minimum and maximum of each number.
_RANGES: Mapping[str, tuple[float, float]] = {
    "cache_mode": (0, 2),
    "cache_size": (_LEAST_TOKENS, 10**12),
    "copy_length": (1, MAX_TREE),
    "match_length": (1, MAX_MATCH),
    "turbo_match_length": (1, MAX_MATCH),
    "min_match_length": (1, MAX_MATCH),
    "cell_max_size": (1, MAX_CELL),
    "voc_size": (1, _MOST),
    "max_seq_len": (1, _MOST),
    "eos_token_id": (0, _MOST),
    "top_k": (1, MAX_PATHS),
    "threshold": (0.0, _MOST_WEIGHT),
    "decay": (0.0, 1.0),
    "log_interval": (1, _MOST),
    "target_parallelism": (1, _MOST),
    "top_k_in_cell": (1, MAX_CELL),
    "token_paths_top_k": (1, MAX_PATHS),
    "start_freq": (0.0, _MOST_WEIGHT),
    "num_threads": (1, 1024),
}


def read_config(directory: str) -> LookaheadConfig:
    """Read the file of a directory. `cache_mode` defaults to two token paths, also without a file.

    Raises:
        ConfigurationError: the directory does not exist, or the file holds an option that is
            unknown, of the wrong type or out of range.
    """
    if not Path(directory).is_dir():
        raise ConfigurationError(f"--lookahead-cache-config-dir: directory {directory} not found")
    path = Path(directory) / FILE_NAME
    given = _read_object(path) if path.exists() else {}
    known = {field.name for field in fields(LookaheadConfig)}
    for name, value in given.items():
        if name not in known:
            raise ConfigurationError(f"{path}: unknown option {name!r}")
        _check(path, name, value)
    if "cache_mode" not in given:
        given = {"token_paths_top_k": 2, **given}
    config = LookaheadConfig(**given)
    if config.min_match_length > config.turbo_match_length:
        raise ConfigurationError(
            f"{path}: min_match_length {config.min_match_length} is above turbo_match_length "
            f"{config.turbo_match_length}"
        )
    if config.warmup_file is not None and not config.has_table:
        raise ConfigurationError(
            f"{path}: warmup_file has no effect with cache_mode 0 or without the global cache"
        )
    return config


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except (FileNotFoundError, JsonFileError) as error:
        raise ConfigurationError(str(error)) from None


_IS_OF_TYPE: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", lambda value: type(value) is int),
    "float": ("a number", lambda value: type(value) in (int, float)),
    "str": ("a string", lambda value: isinstance(value, str)),
}
_TYPES = {field.name: str(field.type).split(" ")[0] for field in fields(LookaheadConfig)}


def _check(path: Path, name: str, value: Any) -> None:
    wanted, is_of_type = _IS_OF_TYPE[_TYPES[name]]
    if not is_of_type(value):
        raise ConfigurationError(f"{path}: {name} must be {wanted}, not {json.dumps(value)}")
    if name in _RANGES:
        least, most = _RANGES[name]
        if not least <= value <= most:
            raise ConfigurationError(f"{path}: {name} must be {least} to {most}, not {value}")


def cache_tokens(config: LookaheadConfig, memory_utilization: float | None) -> int:
    """The cache's capacity in tokens: from the flag, from cache_size, or the default.

    Raises:
        ConfigurationError: the fraction of memory is not above 0 and at most 1, or gives too few
            tokens; or cache_size exceeds the machine's memory.
    """
    per_token = bytes_per_token(config.min_match_length, config.turbo_match_length)
    total = psutil.virtual_memory().total
    if memory_utilization is not None:
        if not 0 < memory_utilization <= 1:
            raise ConfigurationError(
                "--cpu-decoding-memory-utilization must be above 0 and at most 1, not "
                f"{memory_utilization}"
            )
        num_tokens = int(memory_utilization * total) // per_token
        if num_tokens < _LEAST_TOKENS:
            raise ConfigurationError(
                f"--cpu-decoding-memory-utilization {memory_utilization} holds {num_tokens} "
                f"tokens; the minimum is {_LEAST_TOKENS}"
            )
        return num_tokens
    if config.cache_size is not None:
        if config.cache_size * per_token > total:
            raise ConfigurationError(
                f"{FILE_NAME}: cache_size {config.cache_size} takes {per_token} bytes a token, "
                f"and the machine has {total}"
            )
        return config.cache_size
    return min(_DEFAULT_TOKENS, int(_DEFAULT_SHARE * total) // per_token)


def cache_options(
    config: LookaheadConfig,
    speculation: SpeculationConfig,
    *,
    vocab_size: int,
    max_model_len: int,
    eos_token_ids: tuple[int, ...],
    max_num_seqs: int,
) -> CacheOptions:
    """The options of the native cache. Raises ConfigurationError as `cache_tokens` does."""
    has_paths = config.token_paths_top_k > 1
    is_penalized = config.cache_mode == Mode.RAW and not has_paths
    return CacheOptions(
        num_slots=max_num_seqs,
        max_len=min(config.max_seq_len or max_model_len, max_model_len),
        vocab_size=min(config.voc_size or vocab_size, vocab_size),
        eos_ids=eos_token_ids if config.eos_token_id is None else (config.eos_token_id,),
        num_tokens=cache_tokens(config, speculation.lookahead_memory_utilization),
        has_table=config.has_table,
        mode=Mode(config.cache_mode),
        copy_length=config.copy_length,
        raw_min=1 if config.is_hybrid else config.match_length,
        raw_max=config.match_length,
        raw_paths=config.top_k,
        min_match=config.min_match_length,
        max_match=config.turbo_match_length,
        cell_size=config.cell_max_size,
        cell_top=config.top_k_in_cell,
        max_paths=config.token_paths_top_k,
        threshold=config.threshold,
        decay=config.decay,
        start_weight=config.start_freq if has_paths else 0.0,
        target_parallelism=config.target_parallelism if is_penalized else 0,
    )
