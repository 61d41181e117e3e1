"""Text given piece by piece against decoding everything at once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_tokenizers import byte_fallback_bpe, byte_level_bpe, unigram, word_piece
from taco_gateway.text.tokenizer.detokenizer import Detokenizer
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer

BYTE_LEVEL = FastTokenizer(byte_level_bpe())
_LLAMA = byte_fallback_bpe()
BYTE_FALLBACK = FastTokenizer(_LLAMA)
WORD_PIECE = FastTokenizer(word_piece())
UNIGRAM = FastTokenizer(unigram())

BYTE_TOKEN_IDS = {i for token, i in _LLAMA.get_vocab().items() if re.fullmatch("<0x..>", token)}

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


@pytest.mark.parametrize("tokenizer", [WORD_PIECE, UNIGRAM], ids=["words", "unigram"])
@given(data=st.data(), cuts=CUTS)
def test_other_decoders_give_the_same_text_through_a_window(
    tokenizer: FastTokenizer, data: st.DataObject, cuts: list[int]
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(spell(tokenizer.detokenizer(), ids, cuts)) == tokenizer.decode(ids)


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
