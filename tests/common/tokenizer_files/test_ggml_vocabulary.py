"""Vocabularies of GGUF files against the tokenizers that they were made of."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from support.tiny_tokenizers import CORPUS, byte_fallback_bpe, byte_level_bpe
from taco_common.tokenizer_files.ggml_vocabulary import GgmlVocabulary
from taco_common.tokenizer_files.pre_tokenizers import PRE_TOKENIZERS

_TEXTS = (
    *CORPUS,
    "",
    " ",
    "  two  spaces\n\n\n and lines \t tabs  ",
    "I'm here, you'RE there: 12345 67 x=3.14; ok?!",
    "Größe naïve 日本語テキスト한국어 немного 🙂 e\u0301",
    "<|im_start|>user\nhi<|im_end|><think>so</think>",
    "snake_case CamelCase https://a.b/c?d=e#f <s>[INST] hello [/INST]</s>",
)


def _metadata(tokenizer: Tokenizer, model: str, **keys: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes of a tokenizer."""
    content = json.loads(tokenizer.to_str())
    added = {token["id"]: token["special"] for token in content["added_tokens"]}
    texts = {i: text for text, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(max(texts) + 3)]
    types = [
        (3 if added[i] else 4) if i in added else (1 if i in texts else 5)
        for i in range(len(tokens))
    ]
    metadata: dict[str, Any] = {"model": model, "tokens": tokens, "token_type": types, **keys}
    if model == "gpt2":
        metadata["merges"] = [f"{left} {right}" for left, right in content["model"]["merges"]]
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def _converted(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(GgmlVocabulary(metadata).tokenizer_json()))


def _assert_equal(actual: Tokenizer, wanted: Tokenizer) -> None:
    for text in _TEXTS:
        for special in (True, False):
            ids = wanted.encode(text, add_special_tokens=special).ids
            assert actual.encode(text, add_special_tokens=special).ids == ids, text
        assert actual.decode(ids) == wanted.decode(ids)


def _with(pre: str) -> Tokenizer:
    """A tokenizer whose words are those of a pre-tokenizer's published tokenizer.json."""
    tokenizer = byte_level_bpe()
    split = pre_tokenizers.Split
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    regex_byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    letters = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    match pre:
        case "gpt-2":
            return tokenizer
        case "qwen2":
            tokenizer.normalizer = normalizers.NFC()
            pattern = tokenizers.Regex(letters + r"|\p{N}" + rest)
            steps = [split(pattern, "isolated"), byte_level]
        case "llama-bpe":
            pattern = tokenizers.Regex(letters + r"|\p{N}{1,3}" + rest)
            steps = [split(pattern, "isolated"), byte_level]
        case "smollm":
            steps = [pre_tokenizers.Digits(individual_digits=True), regex_byte_level]
        case "falcon":
            steps = [
                pre_tokenizers.Punctuation("contiguous"),
                regex_byte_level,
                pre_tokenizers.Digits(individual_digits=False),
                split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated"),
            ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe", "smollm", "falcon"])
def test_byte_level_vocabulary(pre: str) -> None:
    wanted = _with(pre)
    keys = {"add_bos_token": False, "eos_token_id": 2}
    _assert_equal(_converted(_metadata(wanted, "gpt2", pre=pre, **keys)), wanted)


def test_a_llama_3_vocabulary_puts_bos_in_front() -> None:
    metadata = _metadata(_with("llama-bpe"), "gpt2", pre="llama-bpe", bos_token_id=1)
    assert _converted(metadata).encode("hi").tokens[0] == "<|im_start|>"
    assert GgmlVocabulary(metadata).tokenizer_config()["add_bos_token"] is True
    metadata["tokenizer.ggml.add_eos_token"] = True
    metadata["tokenizer.ggml.eos_token_id"] = 2
    assert _converted(metadata).encode("hi").tokens[-1] == "<|im_end|>"


def _pieces(tokenizer: Tokenizer, **keys: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: scores in place of merges, types of control and byte tokens."""
    metadata = _metadata(tokenizer, "llama", **keys)
    prefix = "tokenizer.ggml."
    tokens, types = metadata[f"{prefix}tokens"], metadata[f"{prefix}token_type"]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    ranks = {"".join(pair): rank for rank, pair in reversed(list(enumerate(merges)))}
    metadata[f"{prefix}scores"] = [-float(ranks.get(token, len(ranks))) for token in tokens]
    for i, token in enumerate(tokens):
        if token.startswith("<0x"):
            types[i] = 6
        if token in ("<unk>", "<s>", "</s>"):
            types[i] = 2 if token == "<unk>" else 3
    return metadata


def test_sentencepiece_vocabulary() -> None:
    wanted = byte_fallback_bpe()
    special = ["<unk>", "<s>", "</s>"]
    wanted.add_special_tokens(special)
    ids = {"bos_token_id": wanted.token_to_id("<s>"), "eos_token_id": wanted.token_to_id("</s>")}
    actual = _converted(_pieces(wanted, **ids))
    _assert_equal(actual, wanted)


def test_spaces_of_user_defined_tokens() -> None:
    """Gemma's runs of spaces are tokens, which writers spell with spaces."""
    tokenizer = byte_fallback_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_tokens([AddedToken("▁▁▁", normalized=True)])
    metadata = _pieces(tokenizer, add_space_prefix=False, add_bos_token=False)
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("▁▁▁")] = "   "
    tokens_of = _converted(metadata).encode("t   e").tokens
    assert tokens_of == ["t", "   ", "e"]


def test_tokens_that_end_a_sequence() -> None:
    metadata = _metadata(byte_level_bpe(), "gpt2", pre="gpt-2", eos_token_id=0, eot_token_id=1)
    assert GgmlVocabulary(metadata).end_ids() == [0, 1, 2]


def test_chat_template() -> None:
    metadata = _metadata(byte_level_bpe(), "gpt2", pre="gpt-2")
    assert "chat_template" not in GgmlVocabulary(metadata).tokenizer_config()
    metadata["tokenizer.chat_template"] = "{{ messages }}"
    assert GgmlVocabulary(metadata).tokenizer_config()["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", "bert", r"the tokenizer bert \(WordPiece\) is not supported; known: gpt2, llama"),
        ("model", "plamo2", "the tokenizer 'plamo2' is not supported; known: gpt2, llama, t5"),
        ("pre", "unheard-of", "the pre-tokenizer 'unheard-of' is not supported; known: a.x"),
        ("tokens", 7, "tokens must be a list of str"),
        ("token_type", [1], "token_type has 1 items for"),
        ("merges", ["ab"], "merges has 'ab', which is no pair"),
        ("merges", ["nothing here"], "its merges have the part 'here', which is no token"),
        ("merges", None, r"it has no key 'tokenizer\.ggml\.merges'"),
    ],
)
def test_damaged_vocabularies(key: str, value: Any, message: str) -> None:
    metadata = _metadata(byte_level_bpe(), "gpt2", pre="gpt-2")
    metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ValueError, match=message):
        GgmlVocabulary(metadata).tokenizer_json()


def test_every_pre_tokenizer_makes_words() -> None:
    for name in PRE_TOKENIZERS:
        metadata = _metadata(byte_level_bpe(), "gpt2", pre=name, add_bos_token=False)
        tokenizer = _converted(metadata)
        for text in _TEXTS[:6]:
            assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_files_without_a_vocabulary() -> None:
    assert not GgmlVocabulary({"tokenizer.ggml.model": "no_vocab"}).is_there
    assert GgmlVocabulary(_metadata(byte_level_bpe(), "gpt2")).is_there


# They look ahead over all digits of a number: a sandboxed process encodes with them.
_SANDBOXED = ("superbpe", "tiny_aya", "cohere2moe")


def test_tokenizers_of_files_are_safe_to_run() -> None:
    from taco_gateway.text.tokenizer.safety import decoding_risk, encoding_risk

    for name in PRE_TOKENIZERS:
        metadata = _metadata(byte_level_bpe(), "gpt2", pre=name)
        description = GgmlVocabulary(metadata).tokenizer_json()
        assert (encoding_risk(description) is not None) == (name in _SANDBOXED), name
        assert decoding_risk(description) is None, name


@pytest.mark.parametrize("pre", ["deepseek-llm", "kimi-k2", "youtu", "seed-coder", "minicpm5"])
def test_long_texts_take_linear_time(pre: str) -> None:
    """Twice the text takes at most three times as long, whatever it repeats."""
    tokenizer = _converted(_metadata(byte_level_bpe(), "gpt2", pre=pre, add_bos_token=False))
    tokenizer.model = models.BPE(vocab=tokenizer.get_vocab(with_added_tokens=False), merges=[])
    for unit in (" ", "1", "a", "A", "\n", "!", " \t", "\u4e00", "' "):
        times = []
        for size in (2**15, 2**16):
            text = unit * (size // len(unit)) + "x"
            started = time.process_time()
            tokenizer.encode(text, add_special_tokens=False)
            times.append(time.process_time() - started)
        assert times[1] < 3 * times[0] + 0.2, unit


def test_end_of_harmony() -> None:
    """Where a turn has parts, the token that ends a part ends no sequence."""
    metadata = _metadata(byte_level_bpe(), "gpt2", pre="gpt-4o")
    for token in ("<|end|>", "<|return|>", "<|call|>"):
        metadata["tokenizer.ggml.tokens"].append(token)
        metadata["tokenizer.ggml.token_type"].append(3)
    tokens = metadata["tokenizer.ggml.tokens"]
    ends = [tokens[i] for i in GgmlVocabulary(metadata).end_ids()]
    assert ends == ["<|endoftext|>", "<|im_end|>", "<|return|>", "<|call|>"]
    tokens[-1] = "<|other|>"
    assert "<|end|>" in [tokens[i] for i in GgmlVocabulary(metadata).end_ids()]


def test_ends_that_are_stored_as_plain_tokens() -> None:
    metadata = _metadata(byte_level_bpe(), "gpt2", pre="gpt-2")
    metadata["tokenizer.ggml.token_type"][2] = 1
    assert 2 in GgmlVocabulary(metadata).end_ids()
    assert _converted(metadata).encode("a<|im_end|>").ids[-1] == 2


def test_lists_of_ids() -> None:
    metadata = _metadata(byte_level_bpe(), "gpt2", pre="gpt-2", eos_token_id=[5, 2**32 - 1, 2])
    assert GgmlVocabulary(metadata).end_ids()[:2] == [5, 2]
    assert GgmlVocabulary(metadata).token_id("eos") == 5


def test_named_chat_templates() -> None:
    keys = {"chat_templates": ["tool_use", "rag"], "chat_template": "a"}
    keys |= {"chat_template.tool_use": "b", "chat_template.rag": "c"}
    metadata = _metadata(byte_level_bpe(), "gpt2", pre="gpt-2")
    metadata |= {f"tokenizer.{key}": value for key, value in keys.items()}
    named = {"default": "a", "rag": "c", "tool_use": "b"}
    assert GgmlVocabulary(metadata).tokenizer_config()["chat_template"] == [
        {"name": name, "template": template} for name, template in named.items()
    ]
    metadata["tokenizer.chat_template.rag"] = 7
    with pytest.raises(ValueError, match=r"tokenizer\.chat_template\.rag is not a text"):
        GgmlVocabulary(metadata).tokenizer_config()
