"""The vocabulary of a tokenizer.json, as llama.cpp's converter writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType

from taco_common.tokenizer_files.byte_level import BYTE_LEVEL_ALPHABET

_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unk", "pad_token": "pad"}


def add_tokenizer(writer: GGUFWriter, directory: Path, pre: str) -> None:
    """Add the byte-level vocabulary (`_set_vocab_gpt2`) and its special tokens.

    Args:
        directory: of tokenizer.json and tokenizer_config.json.
        pre: name of the pre-tokenizer.
    """
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    texts = {i: text for text, i in tokenizer["model"]["vocab"].items()}
    texts |= {i: token["content"] for i, token in added.items()}
    tokens, types = [], []
    for i in range(max(texts) + 1):
        tokens.append(texts.get(i, f"[PAD{i}]"))
        if i not in texts:
            types.append(TokenType.UNUSED)
        elif i not in added:
            types.append(TokenType.NORMAL)
        else:
            types.append(TokenType.CONTROL if added[i]["special"] else TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = [tuple(one) for one in tokenizer["model"]["merges"]]
    assert all(set(left + right) <= BYTE_LEVEL_ALPHABET.keys() for left, right in merges)
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    _add_special_tokens(writer, settings, {text: i for i, text in texts.items()})


def _add_special_tokens(writer: GGUFWriter, settings: dict[str, Any], ids: dict[str, int]) -> None:
    for name, kind in _NAMES.items():
        if settings.get(name):
            getattr(writer, f"add_{kind}_token_id")(ids[settings[name]])
    for name in ("add_bos_token", "add_eos_token"):
        if name in settings:
            getattr(writer, f"add_{name}")(settings[name])
    if settings.get("chat_template"):
        writer.add_chat_template(settings["chat_template"])
