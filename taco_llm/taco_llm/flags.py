"""Command-line flags as dataclass fields: a field's default, type and help are written once.

`EngineArgs` and `GatewayArgs` are such dataclasses. Python callers construct them; the command line
makes an argparse flag of every field and constructs them from what was given.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, NoReturn

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
    """

    help: str
    services: frozenset[str]
    parse: Callable[[str], Any] | None = None
    choices: tuple[Any, ...] | None = None
    several: str | None = None
    metavar: str | None = None


def flag(
    help_text: str,
    services: Iterable[str] = (),
    *,
    default: Any = MISSING,
    parse: Callable[[str], Any] | None = None,
    choices: tuple[Any, ...] | None = None,
    several: str | None = None,
    metavar: str | None = None,
) -> Any:
    """A dataclass field that is a flag as well; see `Flag`."""
    spec = Flag(help_text, frozenset(services), parse, choices, several, metavar)
    return field(default=default, metadata={"flag": spec})


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose switches take `=true` and `=false`.

    What a parse returns holds only what was given: defaults live in the dataclasses, so that a
    configuration file can stand between the two.

    Attributes:
        switches: the flags without a value, as they are written without their dashes.
        superseded: the destinations of flags that have no effect any more.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(argument_default=argparse.SUPPRESS, **kwargs)
        self.switches: set[str] = set()
        self.superseded: set[str] = set()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if args is not None:
            args = [self._plain_form(arg) for arg in args]
        return super().parse_known_args(args, namespace)

    def _plain_form(self, arg: str) -> str:
        """`--max_num_seqs` as `--max-num-seqs`, `--switch=false` as `--no-switch`."""
        match = re.fullmatch(r"--([\w-]+)(=.*)?", arg, re.DOTALL)
        if match is None:
            return arg
        name, value = match[1].replace("_", "-"), match[2] or ""
        if name in self.switches and value.lower() in ("=true", "=false"):
            return f"--{name}" if value.lower() == "=true" else f"--no-{name}"
        return f"--{name}{value}"


def add_flags(parser: Parser, title: str, table: type, service: str | None = None) -> None:
    """Adds the flags of the dataclass `table` that `service` reads (None: all) to `parser`."""
    group = parser.add_argument_group(title)
    for item in fields(table):
        spec = item.metadata["flag"]
        if service is None or service in spec.services:
            _add_flag(parser, group, item, spec)


def _add_flag(parser: Parser, group: argparse._ArgumentGroup, item: Field[Any], spec: Flag) -> None:
    name = item.name.replace("_", "-")
    help_text = (spec.help + _default_note(item.default)).replace("%", "%%")
    if isinstance(item.default, bool):
        parser.switches.add(name)
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=help_text)
        return
    options: dict[str, Any] = {"help": help_text}
    if spec.parse is not None:
        options["type"] = spec.parse
    if spec.choices is not None:
        options["choices"] = spec.choices
    else:
        options["metavar"] = spec.metavar or item.name.upper()
    if spec.several is not None:
        options["action"] = spec.several
    if spec.several == "extend":
        options["nargs"] = "+"
    group.add_argument(f"--{name}", **options)


def _default_note(default: object) -> str:
    if default is MISSING or default is None or default is False or default in ("", ()):
        return ""
    if default is True:
        return " On by default."
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f" Default: {shown}."


def given(table: type, values: dict[str, Any]) -> dict[str, Any]:
    """Those of `values` that are fields of `table`."""
    names = {item.name for item in fields(table)}
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
