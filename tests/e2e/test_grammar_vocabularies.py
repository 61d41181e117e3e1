"""Constraints on models whose vocabulary is a SentencePiece or tiktoken file."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.checkpoints import make_checkpoint
from support.real_app import real_app
from support.tokenizer_models import byte_pair_ranks, sentencepiece_model, tiktoken_file

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["ü", "fox"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
BODY: dict[str, Any] = {"prompt": "The quick", "max_tokens": 300, "seed": 3}
FIELDS: dict[str, tuple[dict[str, Any], Any]] = {
    "choice": ({"guided_choice": ["fox jumps", " over\n", "日本"]}, r"fox jumps| over\n|日本"),
    "regex": ({"guided_regex": "[a-f ü]{3}!"}, "[a-f ü]{3}!"),
    "schema": ({"guided_json": SCHEMA}, None),
}


def with_vocabulary(path: Path, kind: str) -> Path:
    """A checkpoint whose tokenizer.json is replaced by another vocabulary file."""
    ranks = byte_pair_ranks()
    vocab_size, end = (440, 2) if kind == "sentencepiece" else (len(ranks) + 8, len(ranks))
    make_checkpoint(
        path, vocab_size=vocab_size, generation_config={"bos_token_id": 0, "eos_token_id": [end]}
    )
    (path / "tokenizer.json").unlink()
    if kind == "sentencepiece":
        (path / "tokenizer.model").write_bytes(sentencepiece_model())
        settings: dict[str, Any] = {"tokenizer_class": "LlamaTokenizer"}
    else:
        special = {str(end): {"content": "<|endoftext|>", "special": True}}
        (path / "model.tiktoken").write_bytes(tiktoken_file(ranks))
        settings = {"tokenizer_class": "QWenTokenizer", "added_tokens_decoder": special}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("kind", ["sentencepiece", "tiktoken"])
async def test_each_kind_of_constraint_holds(tmp_path: Path, kind: str) -> None:
    async with real_app(with_vocabulary(tmp_path / "model", kind)) as http:
        for fields, pattern in FIELDS.values():
            answer = await http.post("/v1/completions", json={**BODY, **fields, "n": 4})
            assert answer.status_code == 200, answer.text
            for choice in answer.json()["choices"]:
                assert choice["finish_reason"] == "stop", choice
                if pattern is None:
                    jsonschema.validate(json.loads(choice["text"]), SCHEMA)
                else:
                    assert re.fullmatch(pattern, choice["text"]), choice
