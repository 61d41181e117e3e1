"""Converted SentencePiece models against the sentencepiece package."""

import json
from functools import cache
from typing import Any

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from support.tokenizer_models import sentencepiece_model
from taco_common.tokenizer_files.added_tokens import AddedToken
from taco_common.tokenizer_files.model_proto import parse_model_proto
from taco_common.tokenizer_files.sentencepiece import tokenizer_json
from taco_gateway.text.tokenizer.safety import decoding_risk, encoding_risk
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer

_SYMBOLS = ["<x>", "--", "ab<y>"]
# All kinds of models, by the options of the trainer.
_MODELS: dict[str, dict[str, Any]] = {
    "bpe": {},
    "bpe without prefix": {"add_dummy_prefix": False},
    "bpe without bytes": {"byte_fallback": False},
    "bpe with single spaces": {"remove_extra_whitespaces": True},
    "bpe with symbols": {"user_defined_symbols": [*_SYMBOLS, "▁▁"]},
    "bpe of spaces": {"split_by_whitespace": False, "allow_whitespace_only_pieces": True},
    "bpe of symbols without prefix": {
        "user_defined_symbols": [*_SYMBOLS, "▁▁"],
        "add_dummy_prefix": False,
    },
    "bpe with nfkc": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "unigram": {"model_type": "unigram", "required_chars": "<>0xA"},
    "unigram with single spaces": {
        "model_type": "unigram",
        "required_chars": "<>0xA",
        "remove_extra_whitespaces": True,
    },
    "unigram without bytes": {"model_type": "unigram", "byte_fallback": False},
}
_WORDS = ["the ", "qu", "<0x0A>", " dogs", "  ", "日本", *_SYMBOLS, "\n", "aaaa", "ﬁ", "Ⅷ"]
_TEXTS = st.lists(
    st.one_of(
        st.sampled_from(_WORDS),
        st.sampled_from("ab abcdefgxyz.-=é🙂\tÀ"),
        st.characters(exclude_categories=["Cs"], exclude_characters="▁\U0010ffff\x00"),
    ),
    max_size=25,
).map("".join)


@cache
def _pair(name: str) -> tuple[sentencepiece.SentencePieceProcessor, tokenizers.Tokenizer]:
    content = sentencepiece_model(**_MODELS[name])
    converted = json.dumps(tokenizer_json(parse_model_proto(content), {}))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    return theirs, tokenizers.Tokenizer.from_str(converted)


def _fold(text: str, name: str) -> str:
    """The rules of `tokenizers` for NFKC look at whole graphemes: no combining characters."""
    if "nfkc" not in name:
        return text
    return "".join([char for char in text if char in "".join(_WORDS) or char.isascii()])


@pytest.mark.parametrize("name", _MODELS)
@settings(max_examples=150)
@given(text=_TEXTS)
def test_ids_are_those_of_sentencepiece(name: str, text: str) -> None:
    theirs, ours = _pair(name)
    text = _fold(text, name)
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text)


@pytest.mark.parametrize("name", ["bpe", "bpe with symbols", "bpe without prefix", "unigram"])
@settings(max_examples=60)
@given(text=_TEXTS)
def test_a_detokenizer_gives_the_text_back(name: str, text: str) -> None:
    _, converted = _pair(name)
    ours = FastTokenizer(converted)
    ids = ours.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == text
    detokenizer = ours.detokenizer()
    assert "".join([detokenizer.feed([i]) for i in ids]) + detokenizer.flush() == text


@pytest.mark.parametrize("name", _MODELS)
def test_only_compiled_rules_need_a_sandbox(name: str) -> None:
    converted = json.loads(_pair(name)[1].to_str())
    assert decoding_risk(converted) is None
    assert (encoding_risk(converted) is None) == ("nfkc" not in name)


def test_fields_of_the_file_are_read() -> None:
    """The field numbers are those of sentencepiece's own definition."""
    content = sentencepiece_model(
        "unigram", user_defined_symbols=["<x>"], add_dummy_prefix=False, bos_id=-1, pad_id=3
    )
    definition: Any = sentencepiece_model_pb2
    reference = definition.ModelProto.FromString(content)
    model = parse_model_proto(content)
    assert [(p.text, p.score, p.type) for p in model.pieces] == [
        (p.piece, p.score, p.type) for p in reference.pieces
    ]
    trainer, normalizer = reference.trainer_spec, reference.normalizer_spec
    assert model.model_type == trainer.model_type
    assert model.byte_fallback is trainer.byte_fallback is True
    assert (model.bos_id, model.eos_id) == (trainer.bos_id, trainer.eos_id) == (-1, 2)
    assert model.add_dummy_prefix is normalizer.add_dummy_prefix is False
    assert model.remove_extra_whitespaces is normalizer.remove_extra_whitespaces is False
    assert model.escape_whitespaces is normalizer.escape_whitespaces is True


def test_added_tokens_are_behind_the_model_or_in_place_of_its_pieces() -> None:
    model = parse_model_proto(sentencepiece_model(user_defined_symbols=["[UNUSED_0]"]))
    unused = next(i for i, p in enumerate(model.pieces) if p.text == "[UNUSED_0]")
    far = len(model.pieces) + 7
    added = {
        unused: AddedToken(id=unused, content="<|im_start|>"),
        far: AddedToken(id=far, content="<|extra|>", special=False),
    }
    converted = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(model, added)))
    plain = converted.encode("user", add_special_tokens=False).ids
    ids = converted.encode("<|im_start|>user<|extra|>user", add_special_tokens=False).ids
    assert ids == [unused, *plain, far, *plain]
    assert converted.token_to_id("[UNUSED_0]") is None


def test_without_legacy_only_the_text_gets_the_additional_space() -> None:
    model = parse_model_proto(sentencepiece_model())
    parts = [(False, "▁the"), (True, "the")]
    for first_part_only, expected in parts:
        description = tokenizer_json(model, {}, prefixes_first_part_only=first_part_only)
        converted = tokenizers.Tokenizer.from_str(json.dumps(description))
        tokens = converted.encode("the</s>the", add_special_tokens=False).tokens
        assert tokens[0] == "▁the"
        assert "".join(tokens[tokens.index("</s>") + 1 :]) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no pieces"),
        (b"\xff\xff", "it is not a SentencePiece model"),
        (sentencepiece_model("char"), "of type CHAR are not supported"),
        (sentencepiece_model(treat_whitespace_as_suffix=True), "way of writing spaces"),
    ],
    ids=["empty", "random", "char", "suffix"],
)
def test_other_files_are_rejected_in_one_line(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        tokenizer_json(parse_model_proto(content), {})
    assert "\n" not in str(raised.value)
