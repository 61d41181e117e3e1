"""How vocabularies of GGUF files cut texts, against llama.cpp's patterns in another library."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from support.ggml_tokenizer import COMPOSED, PATTERNS, GgmlTokenizer
from support.hard_texts import HARD_TEXTS
from taco_common.tokenizer_files.ggml_vocabulary import GgmlVocabulary
from taco_common.tokenizer_files.pre_tokenizers import PRE_TOKENIZERS

_PIECES = st.one_of(
    st.sampled_from([word for text in HARD_TEXTS for word in text.split(" ")]),
    st.sampled_from(" \n\t\r.,!?'\"-_/(){}[]0123456789abcXYZéÀ中あ한"),
    st.characters(exclude_categories=["Cs", "Cn", "Co"], max_codepoint=0x24F),
)
_TEXTS = st.lists(_PIECES, max_size=20).map("".join)


@cache
def _vocabulary(pre: str) -> dict[str, Any]:
    """Tokens that span words of every rule, so that ids show where a text is cut."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2500,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*HARD_TEXTS, *HARD_TEXTS], trainer)
    content = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].get)
    tokens += ["<think>", "</think>"]
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3] * 3 + [1] * (len(tokens) - 5) + [4] * 2,
        "merges": [f"{left} {right}" for left, right in content["merges"]],
        "add_bos_token": False,
    }


@cache
def _pair(pre: str) -> tuple[Tokenizer, GgmlTokenizer]:
    metadata = _vocabulary(pre)
    content = GgmlVocabulary({f"tokenizer.ggml.{key}": one for key, one in metadata.items()})
    return Tokenizer.from_str(json.dumps(content.tokenizer_json())), GgmlTokenizer(metadata, pre)


@pytest.mark.parametrize("pre", PATTERNS)
def test_hard_texts(pre: str) -> None:
    actual, wanted = _pair(pre)
    for text in (*HARD_TEXTS, "".join(HARD_TEXTS), "\n".join(HARD_TEXTS)):
        ids = actual.encode(text, add_special_tokens=False).ids
        assert ids == wanted.encode(text), text
        if pre not in COMPOSED:
            assert actual.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("pre", PATTERNS)
@settings(max_examples=40, deadline=None)
@given(text=_TEXTS)
def test_random_texts(pre: str, text: str) -> None:
    actual, wanted = _pair(pre)
    assert actual.encode(text, add_special_tokens=False).ids == wanted.encode(text)


def test_names_with_the_same_rule_are_known() -> None:
    """Every rule of the table has an oracle; Falcon's is in `test_ggml_vocabulary`."""
    rules = [PRE_TOKENIZERS[name] for name in PATTERNS]
    without = {name for name, rule in PRE_TOKENIZERS.items() if rule not in rules}
    assert without == {"default", "falcon"}
