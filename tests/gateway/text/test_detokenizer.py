"""Incremental detokenization, compared with decoding all tokens at once."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.decoders import DecodeStream

from support.tiny_tokenizers import (
    byte_fallback_bpe,
    byte_level_bpe,
    unigram,
    word_ending_bpe,
    word_piece,
)
from taco_gateway.text.tokenizer.detokenizer import (
    Detokenizer,
    StreamDetokenizer,
    WindowDetokenizer,
)
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer

BYTE_LEVEL = FastTokenizer(byte_level_bpe())
_LLAMA = byte_fallback_bpe()
BYTE_FALLBACK = FastTokenizer(_LLAMA)
WORD_PIECE = FastTokenizer(word_piece())
UNIGRAM = FastTokenizer(unigram())

BYTE_TOKEN_IDS = {i for token, i in _LLAMA.get_vocab().items() if re.fullmatch("<0x..>", token)}


def _with_decoder(backend: Tokenizer, decoder: decoders.Decoder) -> FastTokenizer:
    backend.decoder = decoder
    return FastTokenizer(backend)


def _without_decoder() -> Tokenizer:
    description = json.loads(unigram().to_str()) | {"decoder": None}
    return Tokenizer.from_str(json.dumps(description))


OTHERS = {
    "WordPiece": WORD_PIECE,
    "WordPiece with clean-up": _with_decoder(word_piece(), decoders.WordPiece(cleanup=True)),
    "Metaspace": UNIGRAM,
    "BPEDecoder": FastTokenizer(word_ending_bpe()),
    "Fuse": _with_decoder(unigram(), decoders.Fuse()),
    "none": FastTokenizer(_without_decoder()),
}

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def token_ids(tokenizer: FastTokenizer) -> st.SearchStrategy[list[int]]:
    # Two ids behind the vocabulary: models round their vocabularies up.
    return st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=40)


def spell(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    pieces = []
    for count in [*cuts, len(ids)]:
        pieces.append(detokenizer.feed(ids[:count]))
        ids = ids[count:]
    return [*pieces, detokenizer.flush()]


CUTS = st.lists(st.integers(0, 3), max_size=40)


@given(ids=token_ids(BYTE_LEVEL), cuts=CUTS, skip=st.booleans())
def test_byte_level_pieces_make_up_the_text_of_any_tokens(
    ids: list[int], cuts: list[int], skip: bool
) -> None:
    detokenizer = BYTE_LEVEL.detokenizer(skip_special_tokens=skip)
    assert "".join(spell(detokenizer, ids, cuts)) == BYTE_LEVEL.decode(
        ids, skip_special_tokens=skip
    )


@given(text=UNICODE)
@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["level", "fallback"])
def test_text_round_trips_and_no_piece_ends_within_a_character(
    tokenizer: FastTokenizer, text: str
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = spell(tokenizer.detokenizer(), ids, [1] * len(ids))
    assert "".join(pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(ids=token_ids(BYTE_FALLBACK), cuts=CUTS, skip=st.booleans())
def test_byte_fallback_pieces_make_up_the_text_of_any_tokens(
    ids: list[int], cuts: list[int], skip: bool
) -> None:
    detokenizer = BYTE_FALLBACK.detokenizer(skip_special_tokens=skip)
    text = "".join(spell(detokenizer, ids, cuts))
    expected = BYTE_FALLBACK.decode(ids, skip_special_tokens=skip)
    if not _some_run_is_half_malformed(ids, skip):
        assert text == expected
    else:
        # `tokenizers` gives up a whole run of byte tokens where any of it is malformed; here the
        # characters that were whole stay.
        assert len(text) <= len(expected)
        assert text.replace("\ufffd", "").startswith(expected.split("\ufffd")[0])


def _some_run_is_half_malformed(ids: list[int], skip: bool) -> bool:
    """Whether a run of byte tokens has whole characters and malformed bytes both."""
    hidden = BYTE_FALLBACK.special_tokens.values() if skip else ()
    runs = [b""]
    for token_id in ids:
        token = BYTE_FALLBACK.token_bytes(token_id)
        if not token or token_id in hidden:
            continue
        if token_id in BYTE_TOKEN_IDS:
            runs[-1] += token
        else:
            runs.append(b"")
    texts = [run.decode(errors="replace") for run in runs]
    return any("\ufffd" in text and text.strip("\ufffd") for text in texts)


@pytest.mark.parametrize("tokenizer", OTHERS.values(), ids=OTHERS)
@given(data=st.data(), cuts=CUTS, skip=st.booleans())
def test_other_decoders_stream_the_text_of_any_tokens(
    tokenizer: FastTokenizer, data: st.DataObject, cuts: list[int], skip: bool
) -> None:
    ids = data.draw(token_ids(tokenizer))
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    assert isinstance(detokenizer, StreamDetokenizer)
    expected = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(spell(detokenizer, ids, cuts)) == expected


@pytest.mark.parametrize("tokenizer", [WORD_PIECE, UNIGRAM], ids=["words", "unigram"])
@given(data=st.data(), cuts=CUTS)
def test_a_window_of_tokens_gives_the_text_of_any_tokens(
    tokenizer: FastTokenizer, data: st.DataObject, cuts: list[int]
) -> None:
    ids = data.draw(token_ids(tokenizer))
    detokenizer = WindowDetokenizer(tokenizer.decode, (), tokenizer.special_tokens.values())
    assert "".join(spell(detokenizer, ids, cuts)) == tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", [WORD_PIECE, UNIGRAM], ids=["words", "unigram"])
@given(data=st.data(), cut=st.integers(0, 20))
def test_other_decoders_continue_a_prompt(
    tokenizer: FastTokenizer, data: st.DataObject, cut: int
) -> None:
    ids = data.draw(token_ids(tokenizer))
    front = tokenizer.decode(ids[:cut])
    if front.endswith("\ufffd"):
        return  # it may be the beginning of a character
    pieces = spell(tokenizer.detokenizer(ids[:cut]), ids[cut:], [1] * len(ids))
    assert front + "".join(pieces) == tokenizer.decode(ids)


def test_replacement_characters_are_streamed_after_a_few_tokens() -> None:
    """A decoder cannot distinguish U+FFFD of an unfinished character from U+FFFD in the text."""
    backend = unigram()
    backend.add_tokens(["\ufffd"])
    tokenizer = FastTokenizer(backend)
    replacement = backend.get_vocab()["\ufffd"]
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.feed((replacement,)) for _ in range(50)]
    assert max(map(len, pieces)) <= 6
    assert "".join([*pieces, detokenizer.flush()]) == tokenizer.decode([replacement] * 50)


def test_a_decoder_that_changes_earlier_text_does_not_fail_the_stream() -> None:
    """`DecodeStream` raises "Invalid prefix": a malformed run of bytes takes its "A" back."""
    backend = byte_fallback_bpe()
    tokenizer = _with_decoder(
        backend, decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    )
    vocab = backend.get_vocab()
    letter, half, other = vocab["<0x41>"], vocab["<0xC3>"], vocab["t"]
    stream = DecodeStream()
    assert stream.step(backend, letter) == "A"
    assert stream.step(backend, half) is None
    with pytest.raises(Exception, match="Invalid prefix"):
        stream.step(backend, other)
    detokenizer = tokenizer.detokenizer()
    assert isinstance(detokenizer, StreamDetokenizer)
    pieces = [detokenizer.feed((i,)) for i in (letter, half, other, other)]
    assert pieces[0] == "A"
    assert "".join([*pieces, detokenizer.flush()]).endswith("tt")


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["level", "fallback"])
@given(prompt=UNICODE, text=UNICODE)
def test_a_continuation_is_what_the_prompt_lacks(
    tokenizer: FastTokenizer, prompt: str, text: str
) -> None:
    ids = tokenizer.encode(prompt + " " + text)
    for cut in range(len(ids) + 1):
        front = tokenizer.decode(ids[:cut])
        if front.endswith("\ufffd"):
            continue  # the prompt ends within a character
        pieces = spell(tokenizer.detokenizer(ids[:cut]), ids[cut:], [])
        assert front + "".join(pieces) == tokenizer.decode(ids)


def test_a_character_that_the_prompt_began_is_finished() -> None:
    ids = BYTE_LEVEL.encode("🦊", add_special_tokens=False)
    assert len(ids) > 2
    assert BYTE_LEVEL.detokenizer(ids[:2]).feed(ids[2:]) == "🦊"


def test_an_unfinished_character_at_the_end_is_a_replacement() -> None:
    ids = BYTE_LEVEL.encode("a🦊", add_special_tokens=False)[:-1]
    detokenizer = BYTE_LEVEL.detokenizer()
    assert detokenizer.feed(ids) == "a"
    assert detokenizer.flush() == "\ufffd"


def test_the_leading_space_goes_at_the_start_of_a_text_only() -> None:
    hello = BYTE_FALLBACK.encode("the", add_special_tokens=False)
    bos = [BYTE_FALLBACK.special_tokens["<s>"]]
    assert BYTE_FALLBACK.detokenizer().feed(hello) == "the"
    assert BYTE_FALLBACK.detokenizer(bos).feed(hello) == "the"
    assert BYTE_FALLBACK.detokenizer(bos + hello).feed(hello) == " the"
