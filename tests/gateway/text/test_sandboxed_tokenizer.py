"""Hostile tokenizers: detected when they are loaded, and limited in memory and time."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from support.tiny_tokenizers import byte_fallback_bpe, byte_level_bpe, unigram, word_piece
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.safety import decoding_risk, encoding_risk
from taco_gateway.text.tokenizer.sandboxed import SandboxedTokenizer
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer as AnyTokenizer
from taco_gateway.text.tokenizer.tokenizer_error import TokenizerError
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError

pytestmark = pytest.mark.process

ODD_PATTERN = r"\p{L}+(?=\p{L})|\p{L}|\P{L}+"  # harmless, and not known to be


def description(backend: Tokenizer) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(backend.to_str())
    return content


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[Tokenizer], AnyTokenizer]]:
    loaded = []

    def write_and_load(backend: Tokenizer) -> AnyTokenizer:
        backend.save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(ModelConfig(model=str(tmp_path)))
        assert tokenizer is not None
        loaded.append(tokenizer)
        return tokenizer

    yield write_and_load
    for tokenizer in loaded:
        tokenizer.close()


def expanding() -> Tokenizer:
    """Its normalizer turns one letter into 10^9."""
    backend = byte_level_bpe()
    backend.normalizer = normalizers.Sequence([normalizers.Replace("q", "q" * 1000)] * 3)
    return backend


def backtracking() -> Tokenizer:
    backend = byte_level_bpe()
    backend.normalizer = normalizers.Replace(Regex(r"(q+)+$"), "x")
    return backend


@pytest.mark.parametrize("make", [byte_level_bpe, byte_fallback_bpe, unigram, word_piece])
def test_usual_tokenizers_are_known_to_be_safe(make: Callable[[], Tokenizer]) -> None:
    assert encoding_risk(description(make())) is None
    assert decoding_risk(description(make())) is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
    ],
    ids=["GPT-2", "Llama 3", "Qwen 2", "digits", "a class"],
)
def test_published_patterns_are_known_to_be_safe(pattern: str) -> None:
    backend = byte_level_bpe()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert encoding_risk(description(backend)) is None


def nested(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [content]}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 65}},
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "a"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 33}},
        {
            "normalizer": nested(
                nested({"type": "Replace", "pattern": {"Regex": "a|aa"}, "content": ""})
            )
        },
        {"normalizer": {"type": "Prepend", "prepend": "a" * 65}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"normalizer": {"pattern": {"String": "a"}, "content": "a"}},
        {"normalizer": {"type": "OfALaterVersion"}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 5}]
                * 2,
            }
        },
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+b"}}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 65,
                "pair": [],
                "special_tokens": {},
            }
        },
        {"model": {"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 10**9}},
        {"model": {"type": "OfALaterVersion"}},
    ],
)
def test_unknown_steps_encode_in_the_sandbox(changes: dict[str, Any]) -> None:
    assert encoding_risk(description(byte_level_bpe()) | changes) is not None


def test_a_decoder_that_is_not_known_is_refused_in_one_line(
    load: Callable[[Tokenizer], AnyTokenizer],
) -> None:
    backend = byte_level_bpe()
    backend.decoder = decoders.Sequence([decoders.Replace("a", "a" * 1000)] * 3)
    with pytest.raises(ConfigurationError, match="decoder has a step 'Replace'") as error:
        load(backend)
    assert "\n" not in str(error.value)


def test_a_token_of_megabytes_is_refused(load: Callable[[Tokenizer], AnyTokenizer]) -> None:
    backend = byte_level_bpe()
    backend.add_tokens(["x" * 5_000_000])
    with pytest.raises(ConfigurationError, match="5000000 characters"):
        load(backend)


def test_a_safe_tokenizer_stays_in_this_process(load: Callable[[Tokenizer], AnyTokenizer]) -> None:
    assert type(load(byte_level_bpe())) is FastTokenizer


@pytest.mark.parametrize("make", [byte_level_bpe, byte_fallback_bpe])
def test_a_sandboxed_tokenizer_gives_the_same_tokens(
    make: Callable[[], Tokenizer],
    load: Callable[[Tokenizer], AnyTokenizer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = make()
    odd = pre_tokenizers.Split(Regex(ODD_PATTERN), "isolated")
    steps = [odd] if backend.pre_tokenizer is None else [odd, backend.pre_tokenizer]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    expected = FastTokenizer(Tokenizer.from_str(backend.to_str()))
    with caplog.at_level(logging.WARNING):
        tokenizer = load(backend)
    assert isinstance(tokenizer, SandboxedTokenizer)
    assert "encodes in sandboxed processes" in caplog.text
    text = "Größe, naïveté: 日本語 🙂\n  def hello():<|im_end|></s> \N{REPLACEMENT CHARACTER}"
    for add_special_tokens in (False, True):
        ids = expected.encode(text, add_special_tokens=add_special_tokens)
        assert tokenizer.encode(text, add_special_tokens=add_special_tokens) == ids
    special = next(iter(expected.special_tokens.values()))
    assert tokenizer.encode_parts([text, special, "x"]) == expected.encode_parts(
        [text, special, "x"]
    )
    assert tokenizer.special_tokens == expected.special_tokens
    assert tokenizer.vocab_size == expected.vocab_size
    assert tokenizer.decode(ids) == expected.decode(ids)
    assert tokenizer.detokenizer().feed(ids) == expected.detokenizer().feed(ids)
    assert tokenizer.prefix_token_ids() == expected.prefix_token_ids()


@pytest.mark.parametrize(
    ("make", "text"),
    [(expanding, "q"), (backtracking, "q" * 40 + "b")],
    ids=["a letter becomes 10^9", "a pattern that backtracks"],
)
def test_a_text_over_the_limits_is_rejected_and_the_next_one_served(
    make: Callable[[], Tokenizer], text: str, load: Callable[[Tokenizer], AnyTokenizer]
) -> None:
    tokenizer = load(make())
    before = tokenizer.encode("Hello, world!")
    with pytest.raises(TokenizerError, match="fails on this text") as error:
        tokenizer.encode(text)
    assert error.value.param == "prompt"
    with pytest.raises(TokenizerError):
        tokenizer.encode_parts([text])
    assert tokenizer.encode("Hello, world!") == before


def test_a_tokenizer_that_fails_on_any_text_is_rejected_at_load(
    load: Callable[[Tokenizer], AnyTokenizer],
) -> None:
    backend = byte_level_bpe()
    backend.normalizer = normalizers.Sequence([normalizers.Replace("o", "o" * 1000)] * 4)
    with pytest.raises(ConfigurationError, match="cannot use the tokenizer"):
        load(backend)


def test_a_panic_of_the_library_is_an_error_of_the_prompt() -> None:
    """(a+)+$ makes the library panic, which raises a BaseException."""
    tokenizer = FastTokenizer(backtracking())
    with pytest.raises(TokenizerError, match="panicked"):
        tokenizer.encode("q" * 40 + "b")
    with pytest.raises(TokenizerError, match="panicked"):
        tokenizer.encode_parts(["q" * 40 + "b"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"model": ' + "[" * 200_000, "nested too deeply"),
        ('{"normalizer": null, "normalizer": {"type": "NFC"}}', "'normalizer' occurs twice"),
        ("[]", "is not a JSON object"),
    ],
    ids=["nested", "a key twice", "a list"],
)
def test_invalid_files_give_one_line(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigurationError, match=reason) as error:
        load_tokenizer(ModelConfig(model=str(tmp_path)))
    assert "\n" not in str(error.value)
