"""Checkpoints without tokenizer.json have the token bytes that their vocabulary files say."""

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from llguidance import LLMatcher, LLTokenizer

from support.tokenizer_models import byte_pair_ranks, sentencepiece_model, tiktoken_file
from taco_proto.config import ModelConfig
from taco_worker.grammars.vocabulary import GrammarError, load_vocabulary, tokenizer_directory

pytestmark = pytest.mark.process

VOCAB_SIZE = 1200
CHOICES = ["fox jumps", "fox", "Größe 日本\n", "the <sym>", " over"]
# Without forcing, a text that has one continuation may be written with any tokens.
LARK = '%llguidance {"no_forcing": true}\nstart: ' + " | ".join(map(json.dumps, CHOICES))


def write(directory: Path, name: str, content: bytes, **settings: Any) -> Path:
    (directory / name).write_bytes(content)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def pieces_of(content: bytes) -> dict[int, bytes]:
    """The bytes of the tokens of a SentencePiece model; control tokens have none."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    found: dict[int, bytes] = {}
    for i in range(processor.get_piece_size()):
        piece = processor.id_to_piece(i)
        if processor.is_byte(i):
            found[i] = bytes([int(piece[3:5], 16)])
        elif not processor.is_control(i) and not processor.is_unknown(i):
            found[i] = piece.replace("▁", " ").encode()
    return found


def allowed(tokenizer: LLTokenizer, before: str) -> set[int]:
    """The tokens that may follow a text, as a matcher computes them."""
    matcher = LLMatcher(tokenizer, LARK, log_level=0)
    assert matcher.consume_tokens(tokenizer.tokenize_str(before))
    mask = matcher.compute_bitmask()
    return {i for i in range(tokenizer.vocab_size) if mask[i // 8] >> (i % 8) & 1}


def expected(tokens: dict[int, bytes], before: str, end: int) -> set[int]:
    """The same by trying all tokens."""
    texts = [choice.encode() for choice in CHOICES]
    start = before.encode()
    found = {i for i, t in tokens.items() if any(text.startswith(start + t) for text in texts)}
    return found | ({end} if before in CHOICES else set())


SENTENCEPIECE: list[tuple[str, dict[str, Any]]] = [
    ("bpe", {}),
    ("unigram", {}),
    ("bpe", {"user_defined_symbols": ["<sym>", "fox"]}),
    ("bpe", {"byte_fallback": False}),
    ("unigram", {"byte_fallback": False, "normalization_rule_name": "nmt_nfkc"}),
    ("bpe", {"add_dummy_prefix": False}),
]


@pytest.mark.parametrize(("kind", "options"), SENTENCEPIECE)
def test_a_sentencepiece_model(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    content = sentencepiece_model(kind, **options)
    gap = {"700": {"content": "<|end|>", "special": True}}
    write(tmp_path, "tokenizer.model", content, added_tokens_decoder=gap)
    tokenizer = load_vocabulary(tmp_path, VOCAB_SIZE, [2])
    tokens = pieces_of(content)
    for before in ("", "fox", "fox ", "the"):
        assert allowed(tokenizer, before) == expected(tokens, before, end=2), before
    assert tokenizer.vocab_size == 701
    assert all(map(tokenizer.is_special_token, (1, 2, 650, 700)))
    assert tokenizer.decode_bytes([700]) == b"<|end|>"


def test_a_tiktoken_file(tmp_path: Path) -> None:
    ranks = byte_pair_ranks()
    write(tmp_path, "qwen.tiktoken", tiktoken_file(ranks), tokenizer_class="QWenTokenizer")
    end = len(ranks)
    tokenizer = load_vocabulary(tmp_path, VOCAB_SIZE, [end])
    tokens = {i: token for token, i in ranks.items()}
    for before in ("", "fox", "fox ", "the"):
        assert allowed(tokenizer, before) == expected(tokens, before, end), before


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match=r"there is neither a tokenizer.json nor a file that"):
        load_vocabulary(tmp_path, VOCAB_SIZE, [2])
    write(tmp_path, "tokenizer.model", b"\x0a\xff" * 100)
    with pytest.raises(GrammarError, match=r"^structured output cannot use this model's tokenizer"):
        load_vocabulary(tmp_path, VOCAB_SIZE, [2])
    with pytest.raises(GrammarError, match="needs an end-of-sequence token"):
        load_vocabulary(tmp_path, VOCAB_SIZE, [VOCAB_SIZE])


def test_the_tokenizer_may_be_in_another_directory(tmp_path: Path) -> None:
    own, other = tmp_path / "model", tmp_path / "tokenizer"
    other.mkdir()
    assert tokenizer_directory(ModelConfig(model="m"), own) == own
    assert tokenizer_directory(ModelConfig(model="m", tokenizer=str(other)), own) == other
    with pytest.raises(GrammarError, match="structured output needs the tokenizer"):
        tokenizer_directory(ModelConfig(model="m", tokenizer=str(tmp_path / "none")), own)
