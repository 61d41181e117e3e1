"""The lower bound on a prompt's tokens, from its length."""

import sys
import threading
import unicodedata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from support.tiny_tokenizers import byte_fallback_bpe, byte_level_bpe, word_piece
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer


def composed_byte_level_bpe() -> tokenizers.Tokenizer:
    backend = byte_level_bpe()
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend


BOUNDED = [
    FastTokenizer(make()) for make in (byte_level_bpe, byte_fallback_bpe, composed_byte_level_bpe)
]


@pytest.mark.parametrize("tokenizer", BOUNDED, ids=["level", "fallback", "composed"])
@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(
            ["quick", " the", "   ", "<|im_start|>", "<think>", "▁▁", "가", "\u212a", "é", "🙂"]
        )
        | st.text(max_size=4)
    ).map("".join)
)
def test_no_text_has_fewer_tokens(tokenizer: FastTokenizer, text: str) -> None:
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.min_num_tokens(text) <= num_tokens
    assert bool(tokenizer.min_num_tokens(text)) == bool(text)


def test_the_bound_is_that_of_the_longest_token() -> None:
    tokenizer = FastTokenizer(byte_level_bpe())
    longest = len("<|endoftext|>")
    assert tokenizer.min_num_tokens("<|endoftext|>" * 100) == 100
    assert tokenizer.min_num_tokens("x" * (longest * 100 + 1)) == 101


def test_composition_shortens_by_the_assumed_factor_at_most() -> None:
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) != "Cs":
            num_bytes = len(unicodedata.normalize("NFC", char).encode())
            assert len(char.encode()) <= 3 * num_bytes
            assert len(unicodedata.normalize("NFD", char).encode()) <= 3 * num_bytes


def swallows_spaces() -> tokenizers.Tokenizer:
    backend = byte_level_bpe()
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return backend


def strips() -> tokenizers.Tokenizer:
    backend = byte_level_bpe()
    backend.normalizer = normalizers.Strip()
    return backend


def drops_spaces() -> tokenizers.Tokenizer:
    backend = byte_level_bpe()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return backend


def misses_bytes() -> tokenizers.Tokenizer:
    backend = byte_level_bpe()
    backend.pre_tokenizer = None
    return backend


@pytest.mark.parametrize("make", [word_piece, swallows_spaces, strips, drops_spaces, misses_bytes])
def test_a_tokenizer_that_drops_characters_has_no_bound(make: object) -> None:
    assert callable(make)
    assert FastTokenizer(make()).min_num_tokens(" " * 10_000) == 0


@pytest.mark.parametrize("plain", [False, True])
def test_other_threads_run_while_a_text_is_encoded(plain: bool) -> None:
    tokenizer = FastTokenizer(byte_level_bpe())
    tokenizer.encode_parts(["a copy is made once"])
    text = "The quick brown fox " * 20_000
    done = threading.Event()

    def encode() -> None:
        if plain:
            tokenizer.encode_parts([text])
        else:
            tokenizer.encode(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    num_turns = 0
    while not done.wait(0.0005):
        num_turns += 1
    thread.join()
    assert num_turns > 5  # it would be 0, or 1 at the beginning
