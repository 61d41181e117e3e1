"""Writes the tables of docs/train/variables.md from taco_train.lightcc.variables.

    python -m tools.variables_page

A test holds the page equal.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from taco_train.lightcc.variables import VARIABLES, WITHOUT_MEANING, Variable

PAGE = Path(__file__).parents[1] / "docs" / "train" / "variables.md"
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with each table as the code has it now."""
    return _TABLE.sub(lambda match: f"{match[1]}{_table(match[2])}{match[3]}", page)


def _table(name: str) -> str:
    if name == "without_meaning":
        rows = [f"| `{one}` | {why} |" for one, why in sorted(WITHOUT_MEANING.items())]
        return "\n".join(["| variable | why |", "|---|---|", *rows, ""])
    chosen = [one for one in VARIABLES if one.name.startswith(name.upper())]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *_rows(chosen), ""])


def _rows(variables: Iterable[Variable]) -> list[str]:
    return [f"| `{one.name}` | {one.default} | {one.meaning} |" for one in variables]


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
