"""Tokenizes untrusted text without interpreting special tokens in it (prompt injection).

A user who writes `<|im_start|>` must not open a turn. `tokenizers` finds special tokens by their
text. So a copy of the tokenizer is made in which the text of every special token is a random secret
that no user can guess. The caller's special tokens are written with that secret; all other text
passes the same normalization, splitting and merging as before. The token ids are those of a
tokenizer whose special tokens have no text. Encoding the pieces between special tokens separately
would give other ids, because normalizers and pre-tokenizers depend on neighbours and positions.
"""

import json
import secrets
import threading
from collections.abc import Sequence
from typing import Any

import tokenizers


class PlainTextEncoder:
    """A copy of a tokenizer with secret texts of special tokens, made at the first use."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._copy: tokenizers.Tokenizer | None = None
        self._spellings: dict[int, str] = {}
        self._true_ids: dict[int, int] = {}

    def encode(self, parts: Sequence[str | int]) -> list[int]:
        """Token ids of strings of plain text and special tokens given by id, in order."""
        with self._lock:
            if self._copy is None:
                self._copy = self._make_copy()
        text = "".join([self._spellings[p] if isinstance(p, int) else p for p in parts])
        true_ids = self._true_ids
        (encoding,) = self._copy.encode_batch_fast([text], add_special_tokens=False)
        return [true_ids.get(i, i) for i in encoding.ids]

    def _make_copy(self) -> tokenizers.Tokenizer:
        description = json.loads(self._backend.to_str())
        secret = secrets.token_hex(16)
        renamed: dict[str, str] = {}
        for token in description["added_tokens"]:
            if token["special"]:
                spelling = f"<{secret}:{token['id']}>"
                self._spellings[token["id"]] = renamed[token["content"]] = spelling
                token["content"] = spelling
                token["single_word"] = False  # the caller's token may be beside a word
        _rename_in_model(description["model"], renamed)
        # Post-processing, which also names special tokens, must add nothing here.
        description["post_processor"] = None
        copy = tokenizers.Tokenizer.from_str(json.dumps(description))
        # The copy renumbers added tokens outside the model's vocabulary if their ids have gaps.
        for token in description["added_tokens"]:
            copied_id = copy.token_to_id(token["content"])
            assert copied_id is not None
            self._true_ids[copied_id] = token["id"]
        return copy


def _rename_in_model(model: dict[str, Any], renamed: dict[str, str]) -> None:
    # Some models look a whole word up in the vocabulary before they split it.
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(token, token): i for token, i in vocab.items()}
    else:
        model["vocab"] = [[renamed.get(token, token), score] for token, score in vocab]
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
