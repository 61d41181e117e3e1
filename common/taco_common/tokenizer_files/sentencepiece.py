"""Converts a SentencePiece model to the content of a tokenizer.json.

The ids are those of SentencePiece. Two properties of `tokenizers` need care:

- It normalizes each part of a text between special tokens by itself. So the additional space is
  in front of each part, as transformers' tokenizers in Python do it.
- It normalizes the text of a user-defined symbol like any text. A mark, which no text has, keeps
  the additional space away from it. With rules of Unicode normalization it cannot find symbols in
  normalized text ("AddedVocabulary bad split"), so it finds them in the text as given. Then the
  text after a symbol also gets an additional space, as in transformers.
"""

import base64
from collections.abc import Mapping
from typing import Any

from taco_common.tokenizer_files.added_tokens import AddedToken, check_unique
from taco_common.tokenizer_files.merge_order import merges_of
from taco_common.tokenizer_files.model_proto import (
    ModelType,
    PieceType,
    SentencePieceModel,
)
from taco_common.tokenizer_files.published_patterns import (
    MARK,
    MARK_AT_START,
    SPACE_AT_END,
    SPACE_AT_START,
    UNMARKED_START,
)

_SPACE = "▁"
_SPECIAL = (PieceType.CONTROL, PieceType.UNKNOWN)


def tokenizer_json(
    model: SentencePieceModel,
    added: Mapping[int, AddedToken],
    *,
    prefixes_first_part_only: bool = False,
) -> dict[str, Any]:
    """The content of the tokenizer.json that encodes as the model does.

    Args:
        added: tokens besides those of the model, or in their place, by id.
        prefixes_first_part_only: only a text gets the additional space, not each part of it
            (`"legacy": false` in tokenizer_config.json).

    Raises:
        ValueError: the model needs something that is not supported.
    """
    if model.model_type not in (ModelType.BPE, ModelType.UNIGRAM):
        raise ValueError(f"SentencePiece models of type {model.model_type.name} are not supported")
    if model.space_is_suffix or not model.escape_whitespaces:
        raise ValueError("its way of writing spaces is not supported")
    in_front = model.add_dummy_prefix and not prefixes_first_part_only
    has_symbols = any(piece.type is PieceType.USER_DEFINED for piece in model.pieces)
    has_marks = in_front and has_symbols and not model.character_map
    texts, tokens = _vocabulary(model, added, MARK if has_marks else "")
    is_bpe = model.model_type is ModelType.BPE
    spaces = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "first", "split": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [tokens[i].entry() for i in sorted(tokens)],
        "normalizer": _sequence("normalizers", _normalizers(model, in_front, has_marks)),
        "pre_tokenizer": spaces if model.add_dummy_prefix and not in_front else None,
        "post_processor": None,
        "decoder": _sequence("decoders", _decoders(model, has_marks)),
        "model": (_bpe if is_bpe else _unigram)(model, texts, added),
    }


def _vocabulary(
    model: SentencePieceModel, added: Mapping[int, AddedToken], mark: str
) -> tuple[dict[int, str], dict[int, AddedToken]]:
    """The texts by id, and the added tokens by id."""
    texts: dict[int, str] = {}
    tokens: dict[int, AddedToken] = {}
    for i, piece in enumerate(model.pieces):
        texts[i] = piece.text
        if piece.type in _SPECIAL:
            tokens[i] = AddedToken(id=i, content=piece.text)
        elif piece.type is PieceType.USER_DEFINED:
            texts[i] = mark + piece.text
            tokens[i] = AddedToken(
                id=i, content=texts[i], special=False, normalized=not model.character_map
            )
    check_unique(added.values(), {text: i for i, text in texts.items() if i not in added})
    tokens.update(added)
    texts.update({i: token.content for i, token in added.items()})
    if len(set(texts.values())) < len(texts):
        raise ValueError("two of its tokens have the same text")
    return texts, tokens


def _bpe(
    model: SentencePieceModel, texts: Mapping[int, str], added: Mapping[int, AddedToken]
) -> dict[str, Any]:
    pieces = [
        piece
        for i, piece in enumerate(model.pieces)
        if piece.type is PieceType.NORMAL and i not in added
    ]
    # The sort is stable: the lower id is first among equal scores.
    by_priority = [piece.text for piece in sorted(pieces, key=lambda piece: -piece.score)]
    unknown = [texts[i] for i, p in enumerate(model.pieces) if p.type is PieceType.UNKNOWN]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown[0] if unknown else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {text: i for i, text in texts.items()},
        "merges": merges_of(by_priority, frozenset(by_priority)),
    }


def _unigram(
    model: SentencePieceModel, texts: Mapping[int, str], added: Mapping[int, AddedToken]
) -> dict[str, Any]:
    lowest = min([p.score for p in model.pieces if p.type is PieceType.NORMAL], default=0.0)
    # `tokenizers` also finds pieces such as "<0x0A>" in a text. Their characters must cost less, as
    # they do unless most of them are unknown.
    unreachable = 64 * min(lowest, -1.0)
    vocab: list[tuple[str, float]] = []
    for i in range(max(texts) + 1):
        if i >= len(model.pieces):
            vocab.append((texts.get(i, f"{MARK}{i}"), unreachable))
            continue
        piece = model.pieces[i]
        hidden = i in added or piece.type in (PieceType.BYTE, PieceType.UNUSED)
        vocab.append((texts[i], unreachable if hidden else piece.score))
    unknown = [i for i, p in enumerate(model.pieces) if p.type is PieceType.UNKNOWN]
    return {
        "type": "Unigram",
        "unk_id": unknown[0] if unknown else None,
        "vocab": vocab,
        "byte_fallback": model.byte_fallback,
    }


def _normalizers(
    model: SentencePieceModel, in_front: bool, has_marks: bool
) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if model.character_map:
        rules = base64.b64encode(model.character_map).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": rules})
    if model.remove_extra_whitespaces:
        steps.append(_replace(" ", {"Regex": " {2,}"}))
        steps.append(_replace("", {"Regex": SPACE_AT_START}))
        steps.append(_replace("", {"Regex": SPACE_AT_END}))
    if has_marks:
        steps.append(_replace(_SPACE, {"Regex": UNMARKED_START}))
        steps.append(_replace("", {"Regex": MARK_AT_START}))
    elif in_front:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    return [*steps, _replace(_SPACE, {"String": " "})]


def _decoders(model: SentencePieceModel, has_marks: bool) -> list[dict[str, Any]]:
    steps = [_replace("", {"String": MARK})] if has_marks else []
    steps.append(_replace(" ", {"String": _SPACE}))
    if model.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps


def _replace(content: str, pattern: dict[str, str]) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _sequence(members: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", members: steps}
