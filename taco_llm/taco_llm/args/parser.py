"""The parser of the command line: one-line errors, switches with values, help by group."""

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

# The plain --help leaves the flags of this group out.
COMPATIBILITY_GROUP = "compatibility: flags of vLLM that have no effect or are not available"

_SWITCH_NOTE = "Every switch --x also takes --no-x, --x True and --x False. "
_GROUP_NOTE = "--help=GROUP shows one group of flags: {groups}. --help=all shows all of them."
_ADVANCED_NOTE = "{count} rarely used flags are not shown here. "


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors, switches that accept a value, and help by group.

    The parser accepts `--switch True`, `--switch=False` and `--no-switch`, and `--max_num_seqs` for
    `--max-num-seqs`. The parsed namespace holds only the options that were given. The dataclasses
    fill in defaults later, so that a configuration file can override them.

    `--help` leaves out the compatibility group and the rarely used flags, `--help=GROUP` shows all
    flags of one group, and `--help=all` shows every flag.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(argument_default=argparse.SUPPRESS, add_help=False, **kwargs)
        self._switches: set[str] = set()
        self._advanced: set[str] = set()
        self._groups: dict[str, argparse._ArgumentGroup] = {}
        self.add_argument(
            *("-h", "--help"),
            action=_HelpAction,
            dest="help",
            metavar="GROUP",
            help="Show this help and exit.",
        )

    def group(self, title: str) -> argparse._ArgumentGroup:
        """The group of flags with this title, created at the first call; see `group_name`."""
        if title not in self._groups:
            help_action = self._option_string_actions["--help"]
            help_action.help = "Show this help and exit; --help=GROUP shows one group of flags."
            self._groups[title] = self.add_argument_group(title)
        return self._groups[title]

    def add_switch(self, group: argparse._ArgumentGroup, name: str, help_text: str) -> None:
        """Adds a flag that needs no value, and its `--no-` form."""
        self._switches.add(name)
        group.add_argument(name, action=argparse.BooleanOptionalAction, help=help_text)

    def add_hidden_switch(self, name: str, dest: str, *, negated: bool = False) -> None:
        """Adds a former name of the switch that sets `dest`; no help shows it.

        Args:
            negated: the former name has the opposite meaning, as --disable-x has to --x.
        """
        self._switches.add(name)
        self.add_argument(
            *(name, f"--no-{name[2:]}"),
            action=_NegatedSwitch if negated else _RenamedSwitch,
            dest=dest,
            help=argparse.SUPPRESS,
        )

    def hide_from_short_help(self, name: str) -> None:
        """Leaves the flag `name` out of the plain `--help`."""
        self._advanced.add(name)

    def has_flag(self, name: str) -> bool:
        return name in self._option_string_actions

    def names(self) -> set[str]:
        """The names of all options, such as max_num_seqs for --max-num-seqs."""
        return {name[2:].replace("-", "_") for name in self._option_string_actions}

    def names_in(self, title: str) -> set[str]:
        """The names of the options that the flags of a group set, such as max_num_seqs."""
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
            command._reject(unknown)
        return parsed

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if args is not None:
            args = self._normalize(args)
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            close = difflib.get_close_matches(value, action.choices, n=1)
            hint = (
                f"did you mean {close[0]}" if close else f"choose from {', '.join(action.choices)}"
            )
            self.error(f"there is no command {value!r}; {hint}{'?' if close else ''}")
        super()._check_value(action, value)

    def _normalize(self, args: Sequence[str]) -> list[str]:
        """Rewrites `args` for argparse: dashes in names, `--no-switch`, and `--help=all`."""
        normalized: list[str] = []
        position = 0
        while position < len(args):
            arg = args[position]
            position += 1
            if arg == "--":
                return [*normalized, *args[position - 1 :]]
            match = re.fullmatch(r"(--[\w-]+)(?:=(.*))?", arg, re.DOTALL)
            if arg in ("-h", "--help"):
                normalized.append("--help=")
            elif match is None:
                normalized.append(arg)
            else:
                name, value = match[1].replace("_", "-"), match[2]
                if name in self._switches and value is None and _is_boolean(args, position):
                    value = args[position]
                    position += 1
                normalized.append(self._normalize_one(name, value))
        return normalized

    def _normalize_one(self, name: str, value: str | None) -> str:
        if value is None:
            return name
        if name in self._switches and value.lower() in ("true", "false"):
            return name if value.lower() == "true" else f"--no-{name[2:]}"
        return f"{name}={value}"

    def _reject(self, unknown: Sequence[str]) -> NoReturn:
        message = f"unrecognized arguments: {' '.join(unknown)}"
        known = [name for name in self._option_string_actions if not name.startswith("--no-")]
        for arg in unknown:
            name = arg.partition("=")[0]
            if name.startswith("-") and (close := difflib.get_close_matches(name, known, n=1)):
                message += f"; did you mean {close[0]} instead of {name}?"
        self.error(message)

    def format_help(self) -> str:
        groups = [group for group in self._action_groups if group.title != COMPATIBILITY_GROUP]
        return self._format_groups(groups, without=self._advanced)

    def format_group(self, name: str) -> str:
        """The help of the group called `name`, or of every group for the name "all".

        An unknown name ends the command with an error.
        """
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

    def _format_groups(
        self,
        groups: Iterable[argparse._ArgumentGroup],
        without: Iterable[str] = (),
    ) -> str:
        without = frozenset(without)
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        _add_groups(formatter, groups, without)
        if self._groups:
            note = _GROUP_NOTE.format(groups=", ".join(map(group_name, self._groups)))
            if without:
                note = _ADVANCED_NOTE.format(count=len(without)) + note
            formatter.add_text((_SWITCH_NOTE if self._switches else "") + note)
        formatter.add_text(self.epilog)
        return formatter.format_help()


def group_name(title: str) -> str:
    """The name of a group in `--help=GROUP`: the first word of its title."""
    return re.split(r"\W", title, maxsplit=1)[0].lower()


def _is_boolean(args: Sequence[str], position: int) -> bool:
    return position < len(args) and args[position].lower() in ("true", "false")


def _add_groups(
    formatter: argparse.HelpFormatter,
    groups: Iterable[argparse._ArgumentGroup],
    without: frozenset[str] = frozenset(),
) -> None:
    for group in groups:
        shown = [act for act in group._group_actions if without.isdisjoint(act.option_strings)]
        formatter.start_section(group.title)
        formatter.add_text(group.description)
        formatter.add_arguments(shown)
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
        # `Parser._normalize` turns a plain --help into --help=.
        print(parser.format_group(values) if values else parser.format_help(), end="")
        parser.exit()


class _RenamedSwitch(argparse.Action):
    """A former name of a switch: `--x` sets True, `--no-x` sets False."""

    is_negated = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nargs=0, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        assert option_string is not None
        is_on = not option_string.startswith("--no-")
        setattr(namespace, self.dest, is_on != self.is_negated)


class _NegatedSwitch(_RenamedSwitch):
    """A former name with the opposite meaning: `--disable-x` sets False."""

    is_negated = True


class _HelpFormatter(argparse.HelpFormatter):
    """Shows a switch without its `--no-` form; a note at the end explains that form."""

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
