"""Converts Mistral's tekken.json to a tokenizer.json.

Special tokens have the ids 0 to `default_num_special_tokens` - 1; the id of any other token is its
rank plus that number. Source: `tokens/tokenizers/tekken.py` of mistral-common 1.8.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from taco_common.tokenizer_files.added_tokens import special_tokens
from taco_common.tokenizer_files.byte_pairs import check_ranks, tokenizer_json

# Of files up to version 7 that list no special tokens.
_SPECIAL_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
_MAX_SPECIAL_TOKENS = 2**16


def convert_tekken(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a tokenizer.json, from the content of a tekken.json.

    Raises:
        ValueError: a field is missing or invalid.
    """
    try:
        config = content["config"]
        pattern = config["pattern"]
        texts = _special_texts(content, config.get("default_num_special_tokens"))
        size = config.get("default_vocab_size")
        num_tokens = None if size is None else int(size) - len(texts)
        ranks = _ranks(content["vocab"], num_tokens)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a tekken.json: {error!r}") from None
    if not isinstance(pattern, str):
        raise ValueError("it is not a tekken.json: its pattern is not a text")
    special = special_tokens(texts, 0)
    return tokenizer_json(ranks, pattern, special, first_id=len(texts))


def _special_texts(content: Mapping[str, Any], count: int | None) -> list[str]:
    listed = content.get("special_tokens")
    if listed is None:
        texts = list(_SPECIAL_TOKENS)
    else:
        texts = [str(entry["token_str"]) for entry in sorted(listed, key=lambda e: int(e["rank"]))]
        if sorted(int(entry["rank"]) for entry in listed) != list(range(len(listed))):
            raise ValueError("the ranks of its special tokens have gaps")
    if count is None:
        return texts
    if not len(texts) <= count <= _MAX_SPECIAL_TOKENS:
        raise ValueError(f"it has {len(texts)} special tokens and room for {count}")
    return texts + [f"<SPECIAL_{i}>" for i in range(len(texts), count)]


def _ranks(vocab: list[dict[str, Any]], num_tokens: int | None) -> dict[bytes, int]:
    entries = vocab if num_tokens is None else vocab[: max(0, num_tokens)]
    try:
        ranks = {
            base64.b64decode(entry["token_bytes"], validate=True): int(entry["rank"])
            for entry in entries
        }
    except (binascii.Error, ValueError):
        raise ValueError("a token of its vocab is not base64, or has no rank") from None
    check_ranks(ranks, len(entries))
    return ranks
