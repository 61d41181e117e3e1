"""Converted tiktoken and tekken files against the tiktoken package."""

import base64
import json
from functools import cache
from typing import Any

import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tokenizer_models import byte_pair_ranks, tiktoken_file
from taco_common.tokenizer_files import published_patterns
from taco_common.tokenizer_files.byte_pairs import parse_tiktoken, tokenizer_json
from taco_common.tokenizer_files.tekken import convert_tekken
from taco_gateway.text.tokenizer.safety import decoding_risk, encoding_risk

_PATTERNS = ("CL100K", "QWEN", "TEKKEN", "O200K", "KIMI")
_WORDS = ["the", " quick", "I'll", "WE'RE", "HelloWorld", "12345", "日本語", "\r\n\n", "  ", "<|im"]
_TEXTS = st.lists(
    st.one_of(
        st.sampled_from(_WORDS),
        st.sampled_from("aAbB 1'\n\t.-é/"),
        st.characters(exclude_categories=["Cs", "Cn"]),
    ),
    max_size=25,
).map("".join)


@cache
def _pair(pattern_name: str) -> tuple[tiktoken.Encoding, tokenizers.Tokenizer]:
    pattern, ranks = getattr(published_patterns, pattern_name), byte_pair_ranks()
    theirs = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    converted = json.dumps(tokenizer_json(ranks, pattern, {}))
    return theirs, tokenizers.Tokenizer.from_str(converted)


@pytest.mark.parametrize("pattern_name", _PATTERNS)
@settings(max_examples=150)
@given(text=_TEXTS)
def test_ids_are_those_of_tiktoken(pattern_name: str, text: str) -> None:
    theirs, ours = _pair(pattern_name)
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text, disallowed_special=())
    assert ours.decode(ids) == text


def test_published_patterns_run_in_the_process_of_the_gateway() -> None:
    for name in _PATTERNS:
        converted = json.loads(_pair(name)[1].to_str())
        assert encoding_risk(converted) is None
        assert decoding_risk(converted) is None


def test_a_file_is_parsed() -> None:
    ranks = byte_pair_ranks()
    assert parse_tiktoken(tiktoken_file(ranks)) == ranks
    assert parse_tiktoken(tiktoken_file(ranks) + b"\n") == ranks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + b"YQ\n", "line .* is not a token in base64 and a number"),
        (lambda text: text + b"??? 999\n", "line .* is not a token in base64"),
        (lambda text: text + b"YQ== 999\n", "a token or a rank twice"),
        (lambda text: text + b"eHl6MTIz 5\n", "a token or a rank twice"),
        (lambda text: text + b"eHl6MTIz -5\n", "negative rank"),
        (lambda text: text[text.index(b"\n") + 1 :], "no token for the byte 0"),
        (lambda _: b"", "no tokens"),
    ],
)
def test_damaged_files_are_rejected(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tiktoken(change(tiktoken_file(byte_pair_ranks())))


def _tekken(**fields: Any) -> dict[str, Any]:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in byte_pair_ranks().items()
    ]
    config = {
        "pattern": published_patterns.TEKKEN,
        "default_vocab_size": len(vocab) + 30 - 10,
        "default_num_special_tokens": 30,
        "version": "v7",
    }
    return {"config": config, "vocab": vocab, **fields}


def test_tekken_puts_special_tokens_in_front() -> None:
    content = _tekken()
    ours = tokenizers.Tokenizer.from_str(json.dumps(convert_tekken(content)))
    ranks = dict(list(byte_pair_ranks().items())[:-10])  # the last ten are padding
    theirs = tiktoken.Encoding(
        "test",
        pat_str=published_patterns.TEKKEN,
        mergeable_ranks=ranks,
        special_tokens={},
    )
    text = "The quick brown fox, 日本語 12345"
    expected = [i + 30 for i in theirs.encode(text)]
    assert ours.encode(text).ids == expected
    assert ours.encode(f"[INST]{text}[/INST]").ids == [3, *expected, 4]
    assert ours.token_to_id("<SPECIAL_29>") == 29
    assert ours.get_vocab_size() == content["config"]["default_vocab_size"]


def test_tekken_lists_its_special_tokens_by_rank() -> None:
    texts = ["</s>", "<unk>", "<s>"]
    listed = [{"rank": (i + 2) % 3, "token_str": text} for i, text in enumerate(texts)]
    ours = tokenizers.Tokenizer.from_str(json.dumps(convert_tekken(_tekken(special_tokens=listed))))
    assert [ours.token_to_id(text) for text in ("<unk>", "<s>", "</s>", "<SPECIAL_3>")] == [
        *range(4)
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "it is not a tekken.json: KeyError"),
        (_tekken(vocab=[{"rank": 0, "token_bytes": "?"}]), "not base64"),
        (_tekken(vocab=[]), "it has no tokens"),
        (_tekken(special_tokens=[{"rank": 4, "token_str": "<s>"}]), "have gaps"),
        (_tekken(config={"pattern": 3}), "its pattern is not a text"),
    ],
)
def test_other_json_is_rejected(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_tekken(content)
