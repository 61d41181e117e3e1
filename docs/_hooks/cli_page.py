"""MkDocs hook: writes the page of commands and flags from the parsers themselves."""

import argparse
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from taco_llm.cli.main import build_parser

INTRODUCTION = """\
# Command line

Every flag may also stand in a YAML file that `--config` names; flags on the command line win. An
unknown or contradictory flag ends the command with one line and exit code 2.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "cli.md", content=cli_page()))
    return files


def cli_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *_commands("taco_llm", build_parser())])


def _commands(prefix: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """A section for each command, and for each command of a command."""
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
        if "superseded" in (group.title or ""):
            lines += ["Superseded flags, accepted with one log line each:", ""]
        lines += ["| flag | meaning |", "|---|---|"]
        lines += [f"| {_flag(action)} | {_cell(action.help or '')} |" for action in actions]
        lines += [""]
    return "\n".join(lines)


def _is_option(action: argparse.Action) -> bool:
    return action.dest != "help" and not isinstance(action, argparse._SubParsersAction)


def _flag(action: argparse.Action) -> str:
    name = " / ".join(f"`{option}`" for option in action.option_strings)
    if not name:
        return f"`{action.metavar}`"
    if action.choices:
        return f"{name} `{{{','.join(str(choice) for choice in action.choices)}}}`"
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return name
    return f"{name} `{action.metavar or action.dest.upper()}`"


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")
