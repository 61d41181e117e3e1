"""SentencePiece models and tiktoken files, trained or made on the spot."""

import base64
import io
from typing import Any

import sentencepiece

CORPUS = (
    "The quick brown fox jumps over the lazy dog while the other dogs are watching.",
    "def hello(name: str) -> str:     return f'Hello, {name}! <0x0A> How are you today?'",
    "Größe, naïveté, œuvre: 日本語のテキスト и немного кириллицы 🙂🙃.",
    "aaaa aaaaaaa aa aaaaaaaaaaaaaaa bababababa abababab baab aabb abcabcabc bcabca ---- ==",
)


def sentencepiece_model(model_type: str = "bpe", **options: Any) -> bytes:
    """The content of a `tokenizer.model`, like Llama's unless options say otherwise."""
    out = io.BytesIO()
    defaults: dict[str, Any] = {
        "vocab_size": 430,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "hard_vocab_limit": False,
        "character_coverage": 0.995,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3),
        model_writer=out,
        model_type=model_type,
        **(defaults | options),
    )
    return out.getvalue()


def byte_pair_ranks() -> dict[bytes, int]:
    """Ranks of a byte-pair encoding trained on the corpus, longer tokens after shorter ones."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = [word.encode() for text in CORPUS for word in _words(text)]
    for length in range(2, 9):
        for word in words:
            for start in range(len(word) - length + 1):
                token = word[start : start + length]
                halves = (token[:cut] in ranks and token[cut:] in ranks for cut in range(1, length))
                if any(halves) and (len(ranks) + start) % 3:
                    ranks.setdefault(token, len(ranks))
    return ranks


def tiktoken_file(ranks: dict[bytes, int]) -> bytes:
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    return b"".join(lines)


def _words(text: str) -> list[str]:
    return [word if number == 0 else f" {word}" for number, word in enumerate(text.split())]
