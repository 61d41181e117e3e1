"""Prompts for fill-in-the-middle equal the formats of the models' publishers."""

from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from support.tiny_tokenizers import byte_level_bpe
from support.tokenizer_models import sentencepiece_model
from taco_common.tokenizer_files.added_tokens import AddedToken as ListedToken
from taco_common.tokenizer_files.model_proto import parse_model_proto
from taco_common.tokenizer_files.sentencepiece import tokenizer_json
from taco_gateway.text.tokenizer.infilling import InfillEncoder
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer
from taco_proto.config import ModelConfig

PREFIX, SUFFIX = "def hello(name):\n    return ", "\n\nprint(hello('fox'))  # 日本\n"
BYTE_LEVEL = [
    (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), ("<fim_pad>", "<file_sep>")),
    (("<fim-prefix>", "<fim-suffix>", "<fim-middle>"), ("<fim-pad>",)),
    (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), ("<|fim_pad|>", "<|file_sep|>")),
    (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), ("<|file_separator|>",)),
    (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), ()),
]


def byte_level(texts: tuple[str, ...], *, special: bool = False) -> FastTokenizer:
    backend = byte_level_bpe()
    backend.add_tokens([AddedToken(text, special=special, normalized=False) for text in texts])
    return FastTokenizer(backend)


def encoder_of(tokenizer: FastTokenizer) -> InfillEncoder:
    encoder = InfillEncoder.of(tokenizer)
    assert encoder is not None
    return encoder


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("markers", "ends"), BYTE_LEVEL)
def test_the_markers_stand_before_prefix_and_suffix_and_behind_both(
    markers: tuple[str, str, str], ends: tuple[str, ...], special: bool
) -> None:
    tokenizer = byte_level((*markers, *ends), special=special)
    encoder = encoder_of(tokenizer)
    before, hole, end = markers
    whole = tokenizer.encode(f"{before}{PREFIX}{hole}{SUFFIX}{end}", add_special_tokens=False)
    assert encoder.encode(PREFIX, SUFFIX) == whole
    known = tokenizer.added_tokens
    assert set(encoder.end_token_ids) == {known[t] for t in (*markers, *ends, "<|endoftext|>")}


TEXT = st.lists(
    st.sampled_from(["<|fim_middle|>", "<|fim_", "middle|>", "<|im_end|>", "<", " a", "é🦊\n"]),
    max_size=8,
).map("".join)
QWEN = byte_level(("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"))


@given(TEXT, TEXT)
def test_markers_and_special_tokens_in_the_texts_stay_text(prefix: str, suffix: str) -> None:
    ids = encoder_of(QWEN).encode(prefix, suffix)
    markers = [QWEN.added_tokens[f"<|fim_{part}|>"] for part in ("prefix", "suffix", "middle")]
    assert [i for i in ids if i in {*markers, *QWEN.special_ids}] == markers
    cut = ids.index(markers[1])
    assert QWEN.decode(ids[1:cut], skip_special_tokens=False) == prefix
    assert QWEN.decode(ids[cut + 1 : -1], skip_special_tokens=False) == suffix


def code_llama(tmp_path: Path) -> tuple[FastTokenizer, sentencepiece.SentencePieceProcessor, int]:
    """A tokenizer of Code Llama's kind, its SentencePiece processor, and the first marker's id."""
    content = sentencepiece_model()
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    first = processor.get_piece_size()
    texts = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
    added = {i: ListedToken(id=i, content=text) for i, text in enumerate(texts, first)}
    return fast_tokenizer(tmp_path, content, added), processor, first


def fast_tokenizer(directory: Path, content: bytes, added: dict[int, ListedToken]) -> FastTokenizer:
    import json

    description = tokenizer_json(parse_model_proto(content), added)
    (directory / "tokenizer.json").write_text(json.dumps(description))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(ModelConfig(model=str(directory)))
    assert isinstance(tokenizer, FastTokenizer)
    return tokenizer


def without_space(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """As `encode_infilling` of Code Llama: the text behind a character that is cut off."""
    guard: list[int] = processor.encode("☺")
    ids: list[int] = processor.encode("☺" + text)
    return ids[len(guard) :]


@pytest.mark.parametrize("suffix", [SUFFIX, "fox jumps", " over"])
def test_code_llama_has_a_space_before_the_prefix_only(tmp_path: Path, suffix: str) -> None:
    tokenizer, processor, first = code_llama(tmp_path)
    encoder = encoder_of(tokenizer)
    parts = [first, *processor.encode(PREFIX), first + 1, *without_space(processor, suffix)]
    assert encoder.encode(PREFIX, suffix) == [1, *parts, first + 2]
    assert encoder.encode(PREFIX, suffix, add_special_tokens=False) == [*parts, first + 2]
    assert set(encoder.end_token_ids) == set(range(first, first + 4))


def test_codestral_has_the_suffix_first(tmp_path: Path) -> None:
    content = sentencepiece_model(control_symbols=["[PREFIX]", "[MIDDLE]", "[SUFFIX]"])
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    encoder = encoder_of(fast_tokenizer(tmp_path, content, {}))
    before, after = map(processor.piece_to_id, ("[PREFIX]", "[SUFFIX]"))
    suffix = without_space(processor, SUFFIX)
    assert encoder.encode(PREFIX, SUFFIX) == [1, after, *suffix, before, *processor.encode(PREFIX)]


def test_a_tokenizer_of_no_family_has_no_encoder() -> None:
    assert InfillEncoder.of(byte_level(("<fim_prefix>", "<fim_suffix>"))) is None
