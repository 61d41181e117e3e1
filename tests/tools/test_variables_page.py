"""docs/train/variables.md has every variable, as the code reads it."""

import re
from pathlib import Path

from taco_train.lightcc.settings import Settings, settings_from
from taco_train.lightcc.variables import VARIABLES
from tools.variables_page import PAGE, with_tables

SOURCES = Path(__file__).parents[2] / "train" / "taco_train"
_NAME = re.compile(r"\b(?:TACO_TRAIN|LIGHT|HOROVOD)_[A-Z0-9_]+\b")


def test_the_page_says_what_the_code_says() -> None:
    """Else: python -m tools.variables_page."""
    page = PAGE.read_text()
    assert with_tables(page) == page


def test_every_name_in_the_sources_is_on_the_page_and_no_other() -> None:
    code = {name for file in SOURCES.rglob("*.py") for name in _NAME.findall(file.read_text())}
    assert set(_NAME.findall(PAGE.read_text())) == code


def test_defaults_are_those_of_the_settings() -> None:
    """Defaults that are values, read as the variable's, are the fields'; others are words."""
    for variable in VARIABLES:
        try:
            value = getattr(settings_from({variable.name: variable.default}), variable.field)
        except ValueError:
            assert variable.default == "none" or " " in variable.default
            continue
        assert variable.default == "none" or value == getattr(Settings(), variable.field)
