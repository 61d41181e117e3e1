"""docs/gguf.md names all types and architectures."""

from __future__ import annotations

import re
from pathlib import Path

from taco_common.tokenizer_files.pre_tokenizers import PRE_TOKENIZERS
from taco_worker.quant.gguf.blocks.block_types import BLOCK_TYPES, PLAIN_TYPES
from taco_worker.quant.gguf.config.architectures import ARCHITECTURES
from taco_worker.quant.gguf.tensor_names import NAME_TABLES

_PAGE = (Path(__file__).parents[2] / "docs" / "gguf.md").read_text()
_KINDS = {"int4": "4-bit codes", "int8": "{bits}-bit codes", "table16": "4-bit indices of a table"}


def _section(title: str) -> str:
    return _PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_types() -> None:
    rows = re.findall(r"^\| (.*) \| (.*) \|$", _section("Types"), re.MULTILINE)
    listed = {name: kept for names, kept in rows for name in names.split(", ")}
    for one in BLOCK_TYPES.values():
        assert listed.pop(one.name) == _KINDS[one.layout.kind].format(bits=one.layout.bits)
    for plain in PLAIN_TYPES.values():
        assert listed.pop(plain.name) == "numbers"
    assert listed == {"type": "kept as"}


def test_architectures() -> None:
    listed = re.sub(r"\([^)]*\)", "", _section("Architectures").partition(". ")[0])
    names = [name.strip() for name in listed.replace("\n", " ").split(",")]
    assert names == sorted(ARCHITECTURES)
    assert ARCHITECTURES.keys() == NAME_TABLES.keys()


def test_pre_tokenizers() -> None:
    listed = _section("Vocabularies").split("\n\n")[1].replace("\n", " ")
    assert listed.removesuffix(".").split(", ") == sorted(PRE_TOKENIZERS)
