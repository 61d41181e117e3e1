"""SentencePiece vocabularies of GGUF files against the sentencepiece package."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from support.hard_texts import HARD_TEXTS
from support.tokenizer_models import sentencepiece_model
from taco_common.tokenizer_files.added_tokens import AddedToken
from taco_common.tokenizer_files.ggml_vocabulary import GgmlVocabulary
from taco_common.tokenizer_files.model_proto import parse_model_proto
from taco_common.tokenizer_files.sentencepiece import tokenizer_json

_MODELS: dict[str, dict[str, Any]] = {
    "bpe": {},
    "bpe without prefix": {"add_dummy_prefix": False},
    "bpe without bytes": {"byte_fallback": False},
    "bpe of spaces": {"split_by_whitespace": False, "allow_whitespace_only_pieces": True},
    "unigram": {"model_type": "unigram", "required_chars": "<>0xA"},
    "unigram with single spaces": {
        "model_type": "unigram",
        "required_chars": "<>0xA",
        "remove_extra_whitespaces": True,
    },
    "unigram without bytes": {"model_type": "unigram", "byte_fallback": False},
    "unigram with nfkc": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc"},
}
_ADDED = ("<|user|>", "[INST]", "<extra_0>")
_TEXTS = st.lists(
    st.one_of(
        st.sampled_from([word for text in HARD_TEXTS for word in text.split(" ")]),
        st.characters(exclude_categories=["Cs"], exclude_characters="▁\U0010ffff\x00"),
    ),
    max_size=20,
).map("".join)


def _metadata(content: bytes, *, added: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `_create_vocab_sentencepiece` and `_set_vocab_t5` of llama.cpp's converter write."""
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    proto = parse_model_proto(content)
    size = model.vocab_size()
    types = []
    for i in range(size):
        kinds = ((model.IsUnknown, 2), (model.IsControl, 3), (model.IsUnused, 5), (model.IsByte, 6))
        types.append(next((number for is_kind, number in kinds if is_kind(i)), 1))
    metadata: dict[str, Any] = {
        "model": "llama" if proto.model_type.name == "BPE" else "t5",
        "pre": "default",
        "tokens": [*map(model.IdToPiece, range(size)), *added],
        "scores": [*map(model.GetScore, range(size)), *[-1000.0] * len(added)],
        "token_type": [*types, *[4] * len(added)],
        "add_space_prefix": proto.add_dummy_prefix,
        "add_bos_token": False,
        "add_eos_token": False,
    }
    if metadata["model"] == "t5":
        metadata["remove_extra_whitespaces"] = proto.remove_extra_whitespaces
        metadata["precompiled_charsmap"] = list(proto.character_map)
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def _converted(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(GgmlVocabulary(metadata).tokenizer_json()))


@cache
def _pair(name: str) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    content = sentencepiece_model(**_MODELS[name])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    return _converted(_metadata(content)), theirs


def _fold(text: str, name: str) -> str:
    """The rules of `tokenizers` for NFKC look at whole graphemes: none of several characters."""
    is_folded = "nfkc" in name
    return text.encode("ascii", "ignore").decode().replace("\r", "") if is_folded else text


@pytest.mark.parametrize("name", _MODELS)
def test_hard_texts(name: str) -> None:
    ours, theirs = _pair(name)
    for text in (*HARD_TEXTS, "".join(HARD_TEXTS), "\n".join(HARD_TEXTS)):
        folded = _fold(text, name)
        assert ours.encode(folded, add_special_tokens=False).ids == theirs.encode(folded), text


@pytest.mark.parametrize("name", _MODELS)
@settings(max_examples=80, deadline=None)
@given(text=_TEXTS)
def test_random_texts(name: str, text: str) -> None:
    ours, theirs = _pair(name)
    text = _fold(text, name)
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text)


@cache
def _pair_with_added(name: str) -> tuple[Tokenizer, Tokenizer]:
    """Ours, and that of a checkpoint with tokenizer.model and added tokens."""
    content = sentencepiece_model(**_MODELS[name])
    model = parse_model_proto(content)
    added = {
        len(model.pieces) + i: AddedToken(id=len(model.pieces) + i, content=text, special=False)
        for i, text in enumerate(_ADDED)
    }
    wanted = Tokenizer.from_str(json.dumps(tokenizer_json(model, added)))
    return _converted(_metadata(content, added=_ADDED)), wanted


@pytest.mark.parametrize("name", ["bpe", "bpe without prefix", "unigram"])
@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.one_of(st.sampled_from(_ADDED), _TEXTS), max_size=5))
def test_added_tokens(name: str, texts: list[str]) -> None:
    """As of the first models with ChatML: each part between tokens has a space in front."""
    ours, wanted = _pair_with_added(name)
    text = "".join(texts)
    encoded = ours.encode(text, add_special_tokens=False)
    assert encoded.ids == wanted.encode(text, add_special_tokens=False).ids


def test_special_tokens_that_files_do_not_name() -> None:
    content = sentencepiece_model()
    metadata = _metadata(content)
    del metadata["tokenizer.ggml.add_bos_token"]
    vocabulary = GgmlVocabulary(metadata)
    settings = vocabulary.tokenizer_config()
    assert (settings["bos_token"], settings["eos_token"]) == ("<s>", "</s>")
    assert vocabulary.end_ids() == [2]
    assert _converted(metadata).encode("a").ids[0] == 1


def test_t5_ends_texts() -> None:
    metadata = _metadata(sentencepiece_model("unigram", unk_id=2, eos_id=1, bos_id=-1, pad_id=0))
    del metadata["tokenizer.ggml.add_eos_token"]
    assert GgmlVocabulary(metadata).tokenizer_config()["pad_token"] == "<pad>"
    assert _converted(metadata).encode("a").ids[-1] == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scores", [0.0], "scores has 1 items, not"),
        ("scores", None, r"it has no key 'tokenizer\.ggml\.scores'"),
        ("precompiled_charsmap", [1, 0, 0, 0], "precompiled_charsmap is cut off"),
        ("precompiled_charsmap", [255] * 12, "precompiled_charsmap is cut off"),
        ("precompiled_charsmap", "x", "precompiled_charsmap must be a list of int"),
        ("add_space_prefix", 1, "add_space_prefix must be true or false, not 1"),
    ],
)
def test_damaged_vocabularies(key: str, value: Any, message: str) -> None:
    metadata = _metadata(sentencepiece_model("unigram"))
    metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ValueError, match=message):
        GgmlVocabulary(metadata).tokenizer_json()
