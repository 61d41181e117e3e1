"""Command-line flags as dataclass fields: a field's default, type and help are written once.

`EngineArgs` and `GatewayArgs` are such dataclasses. Python callers construct them; the command line
makes an argparse flag of every field and constructs them from what was given.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from taco_llm.args.parser import Parser

GATEWAY, SCHEDULER, WORKER, DRAFTER = "gateway", "scheduler", "worker", "draft-worker"


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field appears on the command line.

    Attributes:
        help: one or two sentences.
        services: the services that read it; `taco_llm serve` takes the flags of all of them. None
            for the flags of a tool, such as those of `taco_llm bench`.
        parse: makes the value of its text; None for text and switches.
        choices: the values there are.
        several: "extend" takes several values behind one flag, "append" one flag a value.
        short: the flag's short form, such as -q.
    """

    help: str
    services: frozenset[str]
    parse: Callable[[str], Any] | None = None
    choices: tuple[Any, ...] | None = None
    several: str | None = None
    metavar: str | None = None
    short: str | None = None


def flag(
    help_text: str,
    services: Iterable[str] = (),
    *,
    default: Any = MISSING,
    parse: Callable[[str], Any] | None = None,
    choices: tuple[Any, ...] | None = None,
    several: str | None = None,
    metavar: str | None = None,
    short: str | None = None,
) -> Any:
    """A dataclass field that is a flag as well; see `Flag`."""
    spec = Flag(help_text, frozenset(services), parse, choices, several, metavar, short)
    return field(default=default, metadata={"flag": spec})


def flag_fields(table: type) -> list[Field[Any]]:
    """The fields of `table` that are flags."""
    return [item for item in fields(table) if "flag" in item.metadata]


def add_flags(parser: Parser, title: str, table: type, service: str | None = None) -> None:
    """Adds the flags of the dataclass `table` that `service` reads (None: all) to `parser`.

    A class attribute `FLAG_GROUPS` of the table maps the names of fields to other groups than
    `title`. Where its attribute `NONE_IS_DEFAULT` is true, the value None means the default,
    as it does in Python.
    """
    groups: dict[str, str] = getattr(table, "FLAG_GROUPS", {})
    none_is_default: bool = getattr(table, "NONE_IS_DEFAULT", False)
    for item in flag_fields(table):
        spec: Flag = item.metadata["flag"]
        if service is None or service in spec.services:
            group = parser.group(groups.get(item.name, title))
            _add_flag(parser, group, item, spec, none_is_default)


def _add_flag(
    parser: Parser,
    group: argparse._ArgumentGroup,
    item: Field[Any],
    spec: Flag,
    none_is_default: bool,
) -> None:
    name = item.name.replace("_", "-")
    names = [f"--{name}"] if spec.short is None else [spec.short, f"--{name}"]
    help_text = (spec.help + _default_note(item.default)).replace("%", "%%")
    if isinstance(item.default, bool):
        parser.add_switch(group, names[-1], help_text)
        return
    options: dict[str, Any] = {"help": help_text, "metavar": spec.metavar or item.name.upper()}
    if spec.choices is not None:
        options["metavar"] = "{" + ",".join(map(str, spec.choices)) + "}"
    parse = spec.parse or str
    if spec.choices is not None:
        parse = _one_of(spec.choices, parse)
    options["type"] = or_none(parse) if none_is_default and spec.several is None else parse
    if spec.several is not None:
        options["action"] = spec.several
    if spec.several == "extend":
        options["nargs"] = "+"
    group.add_argument(*names, **options)


def _one_of(choices: tuple[Any, ...], parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_choice(text: str) -> Any:
        try:
            value = parse(text)
        except ValueError:
            value = text
        if value not in choices:
            raise argparse.ArgumentTypeError(not_a_choice(value, choices))
        return value

    return parse_choice


def or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` for argparse, but for the text "None", which gives None."""

    def parse_or_none(text: str) -> Any:
        return None if text == "None" else parse(text)

    # argparse names the type in its message: "invalid int value".
    parse_or_none.__name__ = getattr(parse, "__name__", "")
    return parse_or_none


def not_a_choice(value: object, choices: Iterable[object]) -> str:
    """The end of an error message about `value`, which is none of `choices`."""
    shown = [str(choice) for choice in choices]
    only = f"only {shown[0]} is" if len(shown) == 1 else f"choose from {', '.join(shown)}"
    return f"{value!r} is not available; {only}"


def _default_note(default: object) -> str:
    if default is MISSING or default is None or default is False or default in ("", ()):
        return ""
    if default is True:
        return " On by default."
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f" Default: {shown}."


def given(table: type, values: dict[str, Any]) -> dict[str, Any]:
    """Those of `values` that are fields of `table`."""
    names = {item.name for item in flag_fields(table)}
    return {name: value for name, value in values.items() if name in names}


def json_object(text: str) -> dict[str, Any]:
    """Parses a JSON object, for argparse."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def strings(text: str) -> tuple[str, ...]:
    """Parses a JSON list of strings or one plain string, for argparse."""
    if not text.lstrip().startswith("["):
        return (text,)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not all(isinstance(entry, str) for entry in value):
        raise argparse.ArgumentTypeError("must be a JSON list of strings")
    return tuple(value)
