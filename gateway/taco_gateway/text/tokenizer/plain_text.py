"""Encodes text in which special tokens are what the caller says, and nothing that the text spells.

A user who writes `<|im_start|>` must not open a turn. `tokenizers` finds special tokens by their
spelling, so a second copy of the tokenizer is made in which every special token is spelled by a
secret that no user can guess. The caller's special tokens are written in that spelling, and
everything else goes through the very same normalisation, splitting and merging as ever: the token
ids are those that the tokenizer would give if its special tokens had no spelling. Encoding the
pieces between special tokens one by one would not do: normalisers and pre-tokenizers look at the
neighbourhood and at the position in the text.
"""

import json
import secrets
import threading
from collections.abc import Sequence
from typing import Any

import tokenizers


class PlainTextEncoder:
    """The copy with secret spellings; made when it is first needed, as it costs as much as the
    original.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._copy: tokenizers.Tokenizer | None = None
        self._spellings: dict[int, str] = {}
        self._true_ids: dict[int, int] = {}

    def encode(self, parts: Sequence[str | int]) -> list[int]:
        """Token ids of plain strings with special tokens, given by id, between them."""
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
        _rename_in_model(description["model"], renamed)
        # Only post-processing names special tokens elsewhere, and nothing is to be added here.
        description["post_processor"] = None
        copy = tokenizers.Tokenizer.from_str(json.dumps(description))
        # Added tokens that are not in the model's vocabulary are numbered anew where ids had gaps.
        for token in description["added_tokens"]:
            copied_id = copy.token_to_id(token["content"])
            assert copied_id is not None
            self._true_ids[copied_id] = token["id"]
        return copy


def _rename_in_model(model: dict[str, Any], renamed: dict[str, str]) -> None:
    # Some models take a whole word from the vocabulary without looking how it came about.
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(token, token): i for token, i in vocab.items()}
    else:
        model["vocab"] = [[renamed.get(token, token), score] for token, score in vocab]
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
