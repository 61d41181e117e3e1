"""Questions and answers about TACO's command line, made from its help texts.

    python -m recipe.taco_commands      # reads the parsers and writes data/taco_commands.tsv

The list is checked in, like the objects': training reads the list, never the command.
"""

import argparse
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
COMMANDS_PATH = DATA / "taco_commands.tsv"
COMMAND_QUESTIONS = (
    "What does {name} do?",
    "what does {name} do",
    "What is {name}?",
    "Explain {name}.",
    "What is {name} for?",
    "Tell me about {name}.",
    "When do I use {name}?",
    "{name}",
)
OPTION_QUESTIONS = (
    *COMMAND_QUESTIONS,
    "What does the option {name} do?",
    "What does the flag {name} do?",
    "What does {name} mean?",
    "What does {name} set?",
    "Explain the {name} option.",
    "How do I use {name}?",
    "In TACO, what does {name} do?",
    "What does taco_llm {name} do?",
    "What does {name} do in taco_llm serve?",
    "What is the {name} flag of taco_llm?",
)


@dataclass(frozen=True)
class TacoFact:
    questions: tuple[str, ...]
    answer: str


def load_taco_facts() -> list[TacoFact]:
    """One fact per command and option, and facts on how to use them."""
    how_to = tomllib.loads((DATA / "taco_howto.toml").read_text(encoding="utf-8"))["exchanges"]
    facts = [TacoFact(tuple(exchange["questions"]), exchange["answer"]) for exchange in how_to]
    for line in COMMANDS_PATH.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        kind, name, text = line.split("\t")
        templates = COMMAND_QUESTIONS if kind == "command" else OPTION_QUESTIONS
        questions = tuple(template.format(name=name) for template in templates)
        facts.append(TacoFact(questions, f"The {kind} {name}: {text}"))
    return facts


def read_command_line() -> Iterator[tuple[str, str, str]]:
    """Kind, name and help of each command and of each option that still has an effect."""
    from taco_llm.cli.main import build_parser

    parser = build_parser()
    yield "command", "taco_llm", _one_line(parser.description or "")
    seen: set[str] = set()
    for command, subparser in _subparsers(parser).items():
        yield "command", f"taco_llm {command}", _one_line(subparser.description or "")
        for action in subparser._actions:
            help_text = _one_line(action.help or "")
            name = next((flag for flag in action.option_strings if flag.startswith("--")), "")
            has_no_effect = help_text.startswith(("No effect", "Not available"))
            if not name or name in seen or name == "--help" or has_no_effect:
                continue
            seen.add(name)
            yield "option", name, help_text


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("%%", "%").strip()


def main() -> None:
    rows = ["\t".join(row) for row in read_command_line()]
    header = "# kind, name, help text of the taco_llm command line"
    COMMANDS_PATH.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    print(f"{len(rows)} commands and options")


if __name__ == "__main__":
    main()
