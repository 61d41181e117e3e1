"""Command-line flags declared as dataclass fields: default, type and help text in one place.

Tables such as `EngineArgs` and `GatewayArgs` are dataclasses whose fields are made by `flag`.
Python callers construct a table directly. The command line adds one argparse flag per field
(`add_flags`) and constructs the table from the flags that were given (`given`).
"""

import argparse
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any

from taco_llm.args.parser import Parser

GATEWAY, SCHEDULER, WORKER, DRAFTER = "gateway", "scheduler", "worker", "draft-worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """How a field appears on the command line.

    Attributes:
        help: what the flag controls, its unit, and when to change it. The default is appended.
        services: the services that read the flag; `taco_llm serve` takes the flags of all services.
            Empty for the flags of a tool, such as those of `taco_llm bench`.
        parse: converts the flag's text to the value; None for text and switches.
        choices: the allowed values.
        several: "extend" takes several values after one flag, "append" one value per flag.
        short: the short form, such as -q.
        is_advanced: the plain `--help` leaves the flag out; `--help=GROUP` shows it.
        old_names: former names of the field. They still work and no help shows them.
        old_negations: former names of a switch with the opposite meaning, such as
            disable_log_stats for log_stats. They still work and no help shows them.
    """

    help: str
    services: frozenset[str]
    parse: Callable[[str], Any] | None = None
    choices: tuple[Any, ...] | None = None
    several: str | None = None
    metavar: str | None = None
    short: str | None = None
    is_advanced: bool = False
    old_names: tuple[str, ...] = ()
    old_negations: tuple[str, ...] = ()


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
    is_advanced: bool = False,
    old_names: tuple[str, ...] = (),
    old_negations: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that is also a command-line flag; see `Flag`."""
    spec = Flag(
        help=help_text,
        services=frozenset(services),
        parse=parse,
        choices=choices,
        several=several,
        metavar=metavar,
        short=short,
        is_advanced=is_advanced,
        old_names=old_names,
        old_negations=old_negations,
    )
    return field(default=default, metadata={"flag": spec})


def flag_fields(table: type) -> list[Field[Any]]:
    """The fields of `table` that are flags."""
    return [item for item in fields(table) if "flag" in item.metadata]


def flag_name(field_name: str) -> str:
    """The flag of a field: --max-num-seqs for max_num_seqs."""
    return "--" + field_name.replace("_", "-")


# A name with underscores, or a word before an equals sign; not a part of a path or of a flag.
_FIELD_NAME = re.compile(r"(?<![\w/.-])[a-z]+(?:(?:_[a-z0-9]+)+(?![\w/-])|(?==))")


def with_flag_names(text: str, field_names: Collection[str]) -> str:
    """`text` with flags in place of names of fields: --kv-disk-path for kv_disk_path.

    A name of one word, such as port, may be a word of the sentence: it is replaced only before an
    equals sign.
    """
    return _FIELD_NAME.sub(
        lambda match: flag_name(match[0]) if match[0] in field_names else match[0], text
    )


def add_flags(
    parser: Parser,
    title: str,
    table: type,
    service: str | None = None,
    *,
    only: Collection[str] | None = None,
) -> None:
    """Adds the flags of the dataclass `table` that `service` reads (None: all flags) to `parser`.

    With `only`, adds the flags of these fields alone, and shows them in the plain help.

    Optional class attributes of the table: `FLAG_GROUPS` maps names of fields to groups other than
    `title`. `GROUP_ORDER` is the order of these groups in the help. With `NONE_IS_DEFAULT` the text
    None means the default, as the value None does in Python.
    """
    groups: dict[str, str] = getattr(table, "FLAG_GROUPS", {})
    order: tuple[str, ...] = getattr(table, "GROUP_ORDER", (title,))
    none_is_default: bool = getattr(table, "NONE_IS_DEFAULT", False)
    grouped = [(groups.get(item.name, title), item) for item in flag_fields(table)]
    for group_title, item in sorted(grouped, key=lambda pair: order.index(pair[0])):
        spec: Flag = item.metadata["flag"]
        if only is not None:
            if item.name not in only:
                continue
            spec = replace(spec, is_advanced=False)
        if service is None or service in spec.services:
            _add_flag(parser, parser.group(group_title), item, spec, none_is_default)


def _add_flag(
    parser: Parser,
    group: argparse._ArgumentGroup,
    item: Field[Any],
    spec: Flag,
    none_is_default: bool,
) -> None:
    name = flag_name(item.name)
    old_names = [flag_name(old) for old in spec.old_names]
    if spec.is_advanced:
        parser.hide_from_short_help(name)
    help_text = (spec.help + _default_note(item.default)).replace("%", "%%")
    if isinstance(item.default, bool):
        parser.add_switch(group, name, help_text)
        for old in old_names:
            parser.add_hidden_switch(old, item.name)
        for old in spec.old_negations:
            parser.add_hidden_switch(flag_name(old), item.name, negated=True)
        return
    options: dict[str, Any] = {"metavar": spec.metavar or item.name.upper()}
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
    group.add_argument(*filter(None, (spec.short, name)), help=help_text, **options)
    if old_names:
        parser.add_argument(*old_names, dest=item.name, help=argparse.SUPPRESS, **options)


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
    """Wraps `parse` so that the text None gives None."""

    def parse_or_none(text: str) -> Any:
        return None if text == "None" else parse(text)

    # argparse names the type in its message: "invalid int value".
    parse_or_none.__name__ = getattr(parse, "__name__", "")
    return parse_or_none


def not_a_choice(value: object, choices: Iterable[object]) -> str:
    """The end of an error message: `value` is not one of `choices`."""
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
    """The entries of `values` that are flags of `table`."""
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


def current_names(table: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` with the former names of fields replaced by the current ones; see `Flag`.

    Raises:
        TypeError: an argument is given under its former and its current name.
    """
    renamed = dict(arguments)
    for item in flag_fields(table):
        spec: Flag = item.metadata["flag"]
        for old in (*spec.old_names, *spec.old_negations):
            if old not in renamed:
                continue
            if item.name in renamed:
                raise TypeError(f"{old} is the former name of {item.name}: give one of them")
            value = renamed.pop(old)
            is_negated = old in spec.old_negations and value is not None
            renamed[item.name] = not value if is_negated else value
    return renamed
