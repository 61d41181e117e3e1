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
    commands = next(_subparsers(build_parser()))
    summaries = {action.dest: action.help or "" for action in commands._choices_actions}
    sections = [_command(name, sub, summaries[name]) for name, sub in commands.choices.items()]
    return "\n".join([INTRODUCTION, *sections])


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse._SubParsersAction]:  # type: ignore[type-arg]
    return (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def _command(name: str, parser: argparse.ArgumentParser, summary: str) -> str:
    lines = [f"## taco_llm {name}", "", summary, ""]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.dest != "help"]
        if not actions:
            continue
        if "superseded" in (group.title or ""):
            lines += ["Superseded flags, accepted with one log line each:", ""]
        lines += ["| flag | meaning |", "|---|---|"]
        lines += [f"| {_flag(action)} | {_cell(action.help or '')} |" for action in actions]
        lines += [""]
    return "\n".join(lines)


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
