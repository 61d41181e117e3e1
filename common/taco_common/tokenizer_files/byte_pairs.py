"""Converts byte-pair encodings of bytes (`*.tiktoken`, tekken.json) to a tokenizer.json."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from taco_common.tokenizer_files.added_tokens import AddedToken, check_unique
from taco_common.tokenizer_files.byte_level import BYTE_LEVEL_ALPHABET
from taco_common.tokenizer_files.merge_order import merges_of

_SPELLING = {byte: char for char, byte in BYTE_LEVEL_ALPHABET.items()}


def parse_tiktoken(content: bytes) -> dict[bytes, int]:
    """Ranks by token of a tiktoken file: lines of a token in base64 and its rank.

    Raises:
        ValueError: a line is invalid, or two lines contradict each other.
    """
    ranks: dict[bytes, int] = {}
    lines = content.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text, rank = line.split()
            ranks[base64.b64decode(text, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ValueError(f"line {number} is not a token in base64 and a number") from None
    check_ranks(ranks, len([line for line in lines if line.strip()]))
    return ranks


def tokenizer_json(
    ranks: Mapping[bytes, int],
    pattern: str,
    special: Mapping[int, AddedToken],
    *,
    first_id: int = 0,
    composes: bool = False,
) -> dict[str, Any]:
    """The content of the tokenizer.json that encodes as tiktoken does.

    tiktoken cuts a text into words by a regular expression. A word that is a token is that token;
    in others the two neighbours merge whose concatenation has the lowest rank, the leftmost first.

    Args:
        ranks: of the tokens.
        pattern: the regular expression.
        special: special tokens by id.
        first_id: id of the token of rank 0.
        composes: texts get Unicode's form NFC first.

    Raises:
        ValueError: a special token has the text of another token.
    """
    by_rank = sorted(ranks, key=ranks.__getitem__)
    vocab = {_spell(token): first_id + ranks[token] for token in by_rank}
    ids = set(vocab.values())
    if taken := [token.content for i, token in special.items() if i in ids]:
        raise ValueError(f"the special token {taken[0]!r} has the id of another token")
    check_unique(special.values(), vocab)
    vocab.update({token.content: i for i, token in special.items()})
    merges = merges_of((token for token in by_rank if len(token) > 1), ranks)
    words = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special[i].entry() for i in sorted(special)],
        "normalizer": {"type": "NFC"} if composes else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [words | {"invert": False}, byte_level | {"use_regex": False}],
        },
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocab,
            "merges": [(_spell(left), _spell(right)) for left, right in merges],
        },
    }


def check_ranks(ranks: Mapping[bytes, int], num_entries: int) -> None:
    """Raises ValueError unless tokens and ranks are unique and every byte has a token."""
    if not ranks:
        raise ValueError("it has no tokens")
    if len(ranks) < num_entries or len(set(ranks.values())) < len(ranks):
        raise ValueError("it has a token or a rank twice")
    if min(ranks.values()) < 0 or b"" in ranks:
        raise ValueError("it has a negative rank or an empty token")
    if lacking := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise ValueError(f"it has no token for the byte {lacking[0]}")


def _spell(token: bytes) -> str:
    """A token in the alphabet of byte-level BPE, one character a byte."""
    return "".join([_SPELLING[byte] for byte in token])
