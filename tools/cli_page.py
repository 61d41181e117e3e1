"""Writes docs/cli.md, the page of commands and flags, from the parsers themselves.

    python -m tools.cli_page

A test holds the page equal.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from taco_llm.cli.main import build_parser

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# Command line

This page lists every command and every flag. `python -m tools.cli_page` makes it from the same
source as `--help`.

To see the flags in the terminal:

| command | shows |
|---|---|
| `taco_llm serve --help` | the flags that most users need |
| `taco_llm serve --help=GROUP` | all flags of one group, such as `--help=kv` |
| `taco_llm serve --help=all` | all flags |

- The name of a group is the first word of its title.
- A switch `--x` also takes `--no-x`, `--x True` and `--x False`.
- `--max_num_seqs` and `--max-num-seqs` are the same flag.
- Flags can also be options of a YAML file, such as `port: 8000`. Name the file with
  `--config FILE`. Flags on the command line override the file.
- A wrong flag ends the command with one line on standard error and exit code 2.
- Flags of vLLM that TACO does not have are ignored or rejected: see the group `compatibility` of
  each command.
"""

# The titles of argparse's own groups.
_UNTITLED = ("positional arguments", "options")


def main() -> None:
    PAGE.write_text(cli_page())
    print(f"written: {PAGE}")


def cli_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *_commands("taco_llm", build_parser())])


def _commands(prefix: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """One section per command and per subcommand."""
    for group in parser._actions:
        if not isinstance(group, argparse._SubParsersAction):
            continue
        summaries = {action.dest: action.help or "" for action in group._choices_actions}
        for name, command in group.choices.items():
            yield _command(f"{prefix} {name}", command, summaries[name])
            yield from _commands(f"{prefix} {name}", command)


def _command(name: str, parser: argparse.ArgumentParser, summary: str) -> str:
    lines = [f"## {name}", "", summary, ""]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if _is_option(action)]
        if not actions:
            continue
        if group.title and group.title not in _UNTITLED:
            lines += [f"### {group.title[0].upper()}{group.title[1:]}", ""]
        lines += ["| flag | meaning |", "|---|---|"]
        lines += [f"| {_flag(action)} | {_cell(action.help or '')} |" for action in actions]
        lines += [""]
    return "\n".join(lines)


def _is_option(action: argparse.Action) -> bool:
    is_hidden = action.dest == "help" or action.help == argparse.SUPPRESS
    return not is_hidden and not isinstance(action, argparse._SubParsersAction)


def _flag(action: argparse.Action) -> str:
    is_switch = isinstance(action, argparse.BooleanOptionalAction)
    options = action.option_strings[:1] if is_switch else action.option_strings
    name = " / ".join(f"`{option}`" for option in options)
    if not name:
        return f"`{action.metavar}`"
    if action.choices:
        return f"{name} `{{{','.join(str(choice) for choice in action.choices)}}}`"
    if action.nargs == 0 or is_switch:
        return name
    return f"{name} `{action.metavar or action.dest.upper()}`"


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
