"""Every decision is one short page of the same form, and the index lists it."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_decision_has_the_form(page: Path) -> None:
    text = page.read_text()
    assert len(text.splitlines()) <= 40
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences"]
    assert "\nStatus: " in text


def test_the_index_lists_each_decision_by_its_title() -> None:
    index = (FOLDER / "index.md").read_text()
    listed = re.findall(r"^\| (\d+) \| \[(.*)\]\((.*)\) \|", index, re.MULTILINE)
    titles = [re.findall(r"^# (\d+)\. (.*)$", page.read_text(), re.MULTILINE)[0] for page in PAGES]
    expected = [(*title, page.name) for title, page in zip(titles, PAGES, strict=True)]
    assert listed == expected
