from pathlib import Path

from tools.models_page import PAGE, ROOT, read_facts, with_tables


def test_the_page_says_what_the_code_says() -> None:
    """Else: PYTHONPATH=tests python -m tools.models_page."""
    assert PAGE.read_text() == with_tables(PAGE.read_text())


def test_every_architecture_has_a_checkpoint() -> None:
    assert [one.names for one in read_facts() if not one.variants] == []


def test_each_named_test_of_speculation_is_there() -> None:
    named = {Path(one.speculation) for one in read_facts() if one.speculation}
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
