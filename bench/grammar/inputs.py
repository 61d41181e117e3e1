"""A model folder and grammars for the benchmarks of structured output.

The vocabulary is a byte-level BPE of 151,643 tokens, trained on the Python sources that are
installed: nothing is downloaded. `model_folder` writes it once and keeps it.

    python -m bench.grammar.inputs FOLDER

writes it for `bench/peers/make_checkpoint.py --tokenizer`.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.grammar.schemas import wide_schema
from bench.peers.make_checkpoint import SHAPES, SPECIAL_TOKENS, write_config

NUM_TOKENS = 151_643  # Qwen2's; its logits are wider
_MAX_CORPUS_BYTES = 60_000_000


@dataclass(frozen=True)
class Case:
    """A constraint, and a text that satisfies it.

    Attributes:
        kind: "json" or "regex".
        value: the schema or the expression.
    """

    name: str
    kind: str
    value: Any
    text: str


def model_folder(directory: Path, shape: str = "qwen2-0.5b") -> Path:
    """Writes config.json and tokenizer.json, unless they exist. The weights are to be made up."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(directory, SHAPES[shape])
    if not (directory / "tokenizer.json").exists():
        _train().save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL_TOKENS[0]}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def _train() -> Tokenizer:
    print("training a tokenizer, once: a minute or two", flush=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    missing = NUM_TOKENS - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<reserved {number}>" for number in range(missing)])
    return tokenizer


def _corpus() -> Iterator[str]:
    size = 0
    for root in ("stdlib", "purelib"):
        for path in sorted(Path(sysconfig.get_path(root)).rglob("*.py")):
            text = path.read_text(errors="replace")
            size += len(text)
            if size > _MAX_CORPUS_BYTES:
                return
            yield text


def cases() -> list[Case]:
    """The grammars of the comparison of libraries, from small to large."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "pattern": "^[a-z.]{1,20}@[a-z]{1,20}\\.(com|org)$"},
            "tags": {"type": "array", "items": {"enum": ["new", "vip", "late"]}, "maxItems": 4},
        },
        "required": ["name", "age", "email", "tags"],
        "additionalProperties": False,
    }
    tree = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    }
    nested = {"value": 1.5, "children": [{"value": -2, "children": []}] * 3}
    someone = {"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "tags": ["vip"]}
    names = [f"choice number {number}" for number in range(1000)]
    return [
        Case("expression", "regex", r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}", "2024-05-17T08:30"),
        Case("person", "json", person, json.dumps(someone)),
        Case("any object", "json", {"type": "object"}, json.dumps({"a": [1, {"b": "text"}]})),
        Case("recursive tree", "json", tree, json.dumps(nested)),
        Case("1,000 choices", "json", {"enum": names}, json.dumps(names[777])),
        *(wide_case(count) for count in (20, 300, 3000)),
    ]


def wide_case(num_properties: int) -> Case:
    schema = wide_schema(num_properties)
    value = {name: 7 if number % 2 else "text" for number, name in enumerate(schema["required"])}
    return Case(f"{num_properties:,} properties", "json", schema, json.dumps(value))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    model_folder(parser.parse_args().folder)
