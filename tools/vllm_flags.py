"""Writes the tables of vLLM's flags in docs/coming-from-vllm.md from the parser of `serve`.

    python -m tools.vllm_flags

The page says which flags have no effect and which are not available. The help texts of the
parser are the source; a test holds the page equal.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from taco_llm.cli.main import build_parser

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-vllm.md"
NO_EFFECT, NOT_AVAILABLE = "No effect. ", "Not available"
_TABLE = re.compile(r"(<!-- flags: ([\w ]+) -->\n).*?(<!-- end of flags -->)", re.DOTALL)


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))
    print(f"written: {PAGE}")


def with_tables(page: str) -> str:
    """The page with its tables as the parser is now."""
    tables = {"no effect": no_effect_table, "not available": not_available_table}
    return _TABLE.sub(
        lambda match: "\n".join((match[1], *tables[match[2]](), "", match[3])),
        page,
    )


def no_effect_table() -> Iterator[str]:
    yield from ("| flag | why it has no effect |", "|---|---|")
    for flag, text in _compatibility_flags():
        if text.startswith(NO_EFFECT):
            yield f"| `{flag}` | {text.removeprefix(NO_EFFECT)} |"


def not_available_table() -> Iterator[str]:
    yield from ("| flag | why it is rejected | accepted values |", "|---|---|---|")
    for flag, text in _compatibility_flags():
        if text.startswith(NOT_AVAILABLE):
            limits, _, reason = text.removeprefix(NOT_AVAILABLE).partition(": ")
            accepted = re.sub(r"^; only (.*) (is|are)$", r"`\1`", limits).replace("'", "")
            accepted = accepted.replace(" or ", "`, `") or "–"
            yield f"| `{flag}` | {reason} | {accepted} |"


def _compatibility_flags() -> Iterator[tuple[str, str]]:
    """The name and the help of every flag of vLLM that TACO does not have."""
    for action in serve_parser()._actions:
        text = action.help or ""
        if text.startswith((NO_EFFECT, NOT_AVAILABLE)):
            flag = next(option for option in action.option_strings if option.startswith("--"))
            yield flag, text.replace("%%", "%")


def serve_parser() -> argparse.ArgumentParser:
    [commands] = [
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    parser = commands.choices["serve"]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


if __name__ == "__main__":
    main()
