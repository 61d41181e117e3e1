"""The command line's argument parser: one-line errors, switches with values, help by group."""

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

# The group whose flags the plain --help leaves out.
COMPATIBILITY_GROUP = "compatibility: flags of vLLM that have no effect or are not available"

_SWITCH_NOTE = "Every switch --x also takes --no-x, --x True and --x False. "
_GROUP_NOTE = "--help=GROUP shows one group of flags: {groups}. --help=all shows all of them."


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and whose switches may have a value.

    `--switch True`, `--switch=False` and `--no-switch` are understood, and `--max_num_seqs` as
    `--max-num-seqs`. What a parse returns holds only what was given: defaults are those of the
    dataclasses, so that a configuration file comes between the two.

    `--help` shows all flags but those of the compatibility group, `--help=GROUP` one group and
    `--help=all` every flag.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(argument_default=argparse.SUPPRESS, add_help=False, **kwargs)
        self._switches: set[str] = set()
        self._groups: dict[str, argparse._ArgumentGroup] = {}
        self.add_argument(
            *("-h", "--help"),
            action=_HelpAction,
            dest="help",
            metavar="GROUP",
            help="Show this help and exit.",
        )

    def group(self, title: str) -> argparse._ArgumentGroup:
        """The group of flags with this title, made at the first call; see `group_name`."""
        if title not in self._groups:
            help_action = self._option_string_actions["--help"]
            help_action.help = "Show this help and exit; --help=GROUP shows one group of flags."
            self._groups[title] = self.add_argument_group(title)
        return self._groups[title]

    def add_switch(self, group: argparse._ArgumentGroup, name: str, help_text: str) -> None:
        """Adds the flag `name`, which needs no value."""
        self._switches.add(name)
        group.add_argument(name, action=argparse.BooleanOptionalAction, help=help_text)

    def has_flag(self, name: str) -> bool:
        return name in self._option_string_actions

    def names_in(self, title: str) -> set[str]:
        """The names of the values that flags of a group give, such as max_num_seqs."""
        group = self._groups.get(title)
        return set() if group is None else {action.dest for action in group._group_actions}

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command: Parser = getattr(parsed, "parser", self)
            command._refuse(unknown)
        return parsed

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if args is not None:
            args = self._plain_forms(args)
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            close = difflib.get_close_matches(value, action.choices, n=1)
            hint = (
                f"did you mean {close[0]}" if close else f"choose from {', '.join(action.choices)}"
            )
            self.error(f"there is no command {value!r}; {hint}{'?' if close else ''}")
        super()._check_value(action, value)

    def _plain_forms(self, args: Sequence[str]) -> list[str]:
        """`args` as argparse wants them: dashes in names, `--no-switch`, and `--help=all`."""
        plain: list[str] = []
        position = 0
        while position < len(args):
            arg = args[position]
            position += 1
            if arg == "--":
                return [*plain, *args[position - 1 :]]
            match = re.fullmatch(r"(--[\w-]+)(?:=(.*))?", arg, re.DOTALL)
            if arg in ("-h", "--help"):
                plain.append("--help=")
            elif match is None:
                plain.append(arg)
            else:
                name, value = match[1].replace("_", "-"), match[2]
                if name in self._switches and value is None and _is_boolean(args, position):
                    value = args[position]
                    position += 1
                plain.append(self._plain_form(name, value))
        return plain

    def _plain_form(self, name: str, value: str | None) -> str:
        if value is None:
            return name
        if name in self._switches and value.lower() in ("true", "false"):
            return name if value.lower() == "true" else f"--no-{name[2:]}"
        return f"{name}={value}"

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        message = f"unrecognized arguments: {' '.join(unknown)}"
        known = [name for name in self._option_string_actions if not name.startswith("--no-")]
        for arg in unknown:
            name = arg.partition("=")[0]
            if name.startswith("-") and (close := difflib.get_close_matches(name, known, n=1)):
                message += f"; did you mean {close[0]} instead of {name}?"
        self.error(message)

    def format_help(self) -> str:
        return self._format_groups(
            [group for group in self._action_groups if group.title != COMPATIBILITY_GROUP]
        )

    def format_group(self, name: str) -> str:
        """The help of the group called `name`; "all" is every group. An unknown one is an error."""
        if name == "all":
            return self._format_groups(self._action_groups)
        if not self._groups:
            self.error(f"--help=GROUP belongs to a command: {self.prog} COMMAND --help={name}")
        named = [group for title, group in self._groups.items() if group_name(title) == name]
        if not named:
            names = ", ".join([*map(group_name, self._groups), "all"])
            self.error(f"there is no group {name!r} of flags; --help=GROUP takes {names}")
        formatter = self._get_formatter()
        _add_groups(formatter, named)
        return formatter.format_help()

    def _format_groups(self, groups: Iterable[argparse._ArgumentGroup]) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        _add_groups(formatter, groups)
        if self._groups:
            note = _GROUP_NOTE.format(groups=", ".join(map(group_name, self._groups)))
            formatter.add_text((_SWITCH_NOTE if self._switches else "") + note)
        formatter.add_text(self.epilog)
        return formatter.format_help()


def group_name(title: str) -> str:
    """The name of the group with this title for `--help=GROUP`: its first word."""
    return re.split(r"\W", title, maxsplit=1)[0].lower()


def _is_boolean(args: Sequence[str], position: int) -> bool:
    return position < len(args) and args[position].lower() in ("true", "false")


def _add_groups(
    formatter: argparse.HelpFormatter, groups: Iterable[argparse._ArgumentGroup]
) -> None:
    for group in groups:
        formatter.start_section(group.title)
        formatter.add_text(group.description)
        formatter.add_arguments(group._group_actions)
        formatter.end_section()


class _HelpAction(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, Parser)
        # A plain --help comes as --help= (see `Parser._plain_forms`).
        print(parser.format_group(values) if values else parser.format_help(), end="")
        parser.exit()


class _HelpFormatter(argparse.HelpFormatter):
    """Shows a switch without its --no- form, which a note at the end explains."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Any,
        prefix: str | None = None,
    ) -> None:
        actions = [action for action in actions if not isinstance(action, _HelpAction)]
        super().add_usage(usage, actions, groups, prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0]
        if isinstance(action, _HelpAction):
            return "-h, --help"
        return super()._format_action_invocation(action)
