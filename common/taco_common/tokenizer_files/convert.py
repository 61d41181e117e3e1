"""Converts a vocabulary file without tokenizer.json to the content of one.

A file is untrusted: `convert` runs in a child process with limits on time and memory.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_common.json_file import MAX_TOKENIZER_BYTES, parse_json_object, read_binary_file
from taco_common.tokenizer_files.added_tokens import AddedToken, configured_tokens
from taco_common.tokenizer_files.byte_pair_rules import find_rules
from taco_common.tokenizer_files.byte_pairs import parse_tiktoken
from taco_common.tokenizer_files.byte_pairs import tokenizer_json as byte_pair_json
from taco_common.tokenizer_files.model_proto import (
    PieceType,
    SentencePieceModel,
    parse_model_proto,
)
from taco_common.tokenizer_files.sentencepiece import tokenizer_json as pieces_json
from taco_common.tokenizer_files.tekken import convert_tekken
from taco_proto.errors import ConfigurationError

_MISTRAL_FILES = ("tekken.json", "*.model.v[0-9]*", "tokenizer.model")
_FILES = ("*.tiktoken", "tiktoken.model", "tokenizer.model", "tekken.json", "*.model.v[0-9]*")
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
_GLM_TOKENS = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")
_GLM_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_GLM_PREFIX = ("[gMASK]", "sop")


def vocabulary_file(directory: Path, *, is_mistral: bool = False) -> Path | None:
    """The file of a tokenizer directory that can be converted; None if it has no such file.

    Args:
        is_mistral: only the files of Mistral's own format.
    """
    for pattern in _MISTRAL_FILES if is_mistral else _FILES:
        files = [file for file in directory.glob(pattern) if file.is_file()]
        if files:
            return max(files, key=_version)
    return None


def mistral_file(directory: Path) -> Path:
    """The vocabulary file in Mistral's own format.

    Raises:
        ConfigurationError: the directory has none.
    """
    file = vocabulary_file(directory, is_mistral=True)
    if file is None:
        names = " or ".join(_MISTRAL_FILES)
        raise ConfigurationError(f"tokenizer_mode mistral needs {names} in {directory}")
    return file


def convert(
    file: Path, settings: Mapping[str, Any], ids: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of a tokenizer.json, and defaults of tokenizer_config.json.

    Args:
        settings: content of tokenizer_config.json.
        ids: content of added_tokens.json, ids by text.

    Raises:
        ValueError: the file is damaged, or needs something that is not supported.
    """
    content = read_binary_file(file, MAX_TOKENIZER_BYTES)
    if file.name == "tekken.json":
        tokenizer = convert_tekken(parse_json_object(content.decode(), file))
        return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    added = configured_tokens(settings, ids)
    if _TIKTOKEN_LINE.match(content):
        return _convert_tiktoken(file, content, settings, added)
    return _convert_sentencepiece(content, settings, added)


def _convert_tiktoken(
    file: Path, content: bytes, settings: Mapping[str, Any], added: dict[int, AddedToken]
) -> tuple[dict[str, Any], dict[str, Any]]:
    rules = find_rules(file, settings.get("tokenizer_class"))
    ranks = parse_tiktoken(content)
    special = _without_texts(rules.special(len(ranks)), added) | added
    tokenizer = byte_pair_json(ranks, rules.pattern, special, composes=rules.composes)
    _add_prefix(tokenizer, rules.prefix)
    return tokenizer, dict(rules.settings)


def _convert_sentencepiece(
    content: bytes, settings: Mapping[str, Any], added: dict[int, AddedToken]
) -> tuple[dict[str, Any], dict[str, Any]]:
    model = parse_model_proto(content)
    is_glm = settings.get("tokenizer_class") == "ChatGLMTokenizer"
    if is_glm:
        added = _without_texts(_glm_tokens(len(model.pieces)), added) | added
    first_part_only = settings.get("legacy") is False
    tokenizer = pieces_json(model, added, prefixes_first_part_only=first_part_only)
    if is_glm:
        _add_prefix(tokenizer, _GLM_PREFIX)
    defaults = {
        "bos_token": None if is_glm else _control_token(model, model.bos_id),
        "eos_token": _control_token(model, model.eos_id),
        "add_bos_token": not is_glm,
        "add_eos_token": False,
    }
    return tokenizer, defaults


def _glm_tokens(first_id: int) -> dict[int, AddedToken]:
    """ChatGLM's special tokens, which its code adds. `sop` must not be found inside a word."""
    texts = (*_GLM_TOKENS, *_GLM_ROLES)
    return {
        i: AddedToken(id=i, content=text, special=text != "eop", single_word=text.isalpha())
        for i, text in enumerate(texts, first_id)
    }


def _control_token(model: SentencePieceModel, token_id: int) -> str | None:
    if not 0 <= token_id < len(model.pieces):
        return None
    piece = model.pieces[token_id]
    return piece.text if piece.type is PieceType.CONTROL else None


def _without_texts(
    tokens: dict[int, AddedToken], others: Mapping[int, AddedToken]
) -> dict[int, AddedToken]:
    """`tokens` without those that `others` have under another id."""
    texts = {token.content for token in others.values()}
    return {i: token for i, token in tokens.items() if token.content not in texts}


def _add_prefix(tokenizer: dict[str, Any], texts: tuple[str, ...]) -> None:
    """Makes the tokenizer put special tokens in front of a text."""
    if not texts:
        return
    vocab = tokenizer["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {text: i for i, (text, _) in enumerate(vocab)}
    front = [{"SpecialToken": {"id": text, "type_id": 0}} for text in texts]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*front, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [*front, *({"Sequence": {"id": name, "type_id": 0}} for name in "AB")],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in texts},
    }


def _version(file: Path) -> tuple[int, str]:
    number = re.search(r"\.v(\d+)", file.name)
    return (int(number[1]) if number else 0, file.name)


def dump(tokenizer: Mapping[str, Any]) -> bytes:
    """The text of a tokenizer.json in UTF-8."""
    return json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode()
