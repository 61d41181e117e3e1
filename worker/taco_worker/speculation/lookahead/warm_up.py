"""Reads the warm-up file, whose texts a lookahead cache learns at start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from taco_common.json_file import JsonFileError, read_json_list
from taco_kernels.native.lookahead import LookaheadCache
from taco_proto.errors import ConfigurationError
from taco_proto.steps import IntArray

# About 30 million tokens: more than the cache holds by default.
_MAX_BYTES = 256 * 2**20
_KEYS = ("prompt", "output")


def read_texts(path: Path, vocab_size: int) -> list[IntArray]:
    """The tokens of each entry: prompt, then output.

    Raises:
        ConfigurationError: the file is not [{"prompt": [ids], "output": [ids]}].
    """
    try:
        entries = read_json_list(path, _MAX_BYTES)
    except FileNotFoundError:
        raise ConfigurationError(f"cannot read warmup_file {path}: file not found") from None
    except JsonFileError as error:
        raise ConfigurationError(f"warmup_file: {error}") from None
    return [_read_entry(path, index, entry, vocab_size) for index, entry in enumerate(entries)]


def _read_entry(path: Path, index: int, entry: Any, vocab_size: int) -> IntArray:
    where = f"warmup_file {path}, entry {index}"
    if not isinstance(entry, dict) or set(entry) != set(_KEYS):
        raise ConfigurationError(f"{where}: it must hold prompt and output, and nothing else")
    for key in _KEYS:
        token_ids = entry[key]
        is_list = isinstance(token_ids, list)
        if not is_list or not all(type(id_) is int and 0 <= id_ < vocab_size for id_ in token_ids):
            raise ConfigurationError(
                f"{where}: {key} must be a list of token ids below {vocab_size}"
            )
    return np.array([*entry["prompt"], *entry["output"]], dtype=np.int32)


def warm_up(cache: LookaheadCache, texts: list[IntArray]) -> None:
    """Learn the texts as those of sequences without a cache salt."""
    if texts:
        sizes = np.array([text.size for text in texts], dtype=np.int32)
        cache.learn(sizes, np.concatenate(texts), ())
