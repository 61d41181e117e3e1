"""docs/quantization.md lists every name of --quantization."""

from __future__ import annotations

import re
from pathlib import Path

from taco_worker.quant.registry import quantization_names

_PAGE = (Path(__file__).parents[2] / "docs" / "quantization.md").read_text()


def test_every_name_is_listed_once() -> None:
    section = _PAGE.partition("\n## What is read\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(names) == sorted(quantization_names())
