"""`taco_llm keys …`: the API keys that stand in Redis, for gateways with `--redis-keys`."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taco_llm.args.flags import add_flags, flag, given
from taco_llm.args.parser import Parser
from taco_llm.args.redis_args import RedisArgs
from taco_llm.cli.options import Subparsers, collect, require
from taco_proto.config import RedisConfig
from taco_proto.errors import ConfigurationError

Command = Callable[[RedisConfig, dict[str, Any]], None]


def priority(text: str) -> str | int:
    """Parses a priority, for argparse."""
    return text if text == "low" else int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """What a key's owner may have, as in a key file; checked where that is."""

    weight: float | None = flag(
        "The owner's part of the engine, beside those of others: 2 is twice that of an owner with "
        "1. Default: 1.",
        default=None,
        parse=float,
    )
    max_requests_per_minute: int | None = flag(
        "The most requests a minute.", default=None, parse=int, metavar="REQUESTS"
    )
    max_tokens_per_minute: int | None = flag(
        "The most tokens a minute, of prompts and answers.",
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    max_concurrent_requests: int | None = flag(
        "The most requests at a time.", default=None, parse=int, metavar="REQUESTS"
    )
    models: Sequence[str] | None = flag(
        "Names of the models that the key may use. Default: all.",
        default=None,
        several="extend",
        metavar="MODEL",
    )
    priority: str | int | None = flag(
        "The highest urgency of the owner's requests: low is offline work; of numbers the lower "
        "one runs sooner. Default: 0.",
        default=None,
        parse=priority,
        metavar="PRIORITY",
    )


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "keys",
        help="Add, list and revoke the API keys that gateways share through Redis.",
        description="Adds, lists and revokes the API keys that stand in Redis. Gateways with "
        "--redis-keys follow within seconds.",
    )
    commands = parser.add_subparsers(dest="keys_command", metavar="COMMAND", required=True)
    add = _add_command(commands, "add", _add, "Make a key and print it, this once.")
    _add_name(add)
    add.add_argument(
        "--another",
        action="store_true",
        help="One more key for an owner that is there already, for a change of keys.",
    )
    add_flags(add, "what the owner may have", OwnerOptions)
    _add_command(commands, "list", _list, "Show the owners, what they may have, and no key.")
    revoke = _add_command(commands, "revoke", _revoke, "Take an owner's keys away.")
    _add_name(revoke)
    revoke.add_argument(
        "--key-id", metavar="ID", help="Only this one of them, by its id in the list."
    )
    import_ = _add_command(
        commands,
        "import",
        _import,
        "Take the keys of a key file. An owner that is there already is replaced.",
    )
    import_.add_argument(
        "file", metavar="FILE", help="JSON or YAML, as --api-key-file of a gateway takes it."
    )


def _add_command(commands: Subparsers, name: str, command: Command, help_text: str) -> Parser:
    parser = commands.add_parser(name, help=help_text, description=help_text)
    add_flags(parser, "Redis", RedisArgs)

    def run(parser: Parser, namespace: argparse.Namespace) -> int:
        values = collect(parser, namespace)
        require(values, "redis_url", "--redis-url is needed: where the keys stand")
        config = RedisArgs(**given(RedisArgs, values)).redis_config()
        assert config is not None
        command(config, values)
        return 0

    parser.set_defaults(run=run, parser=parser)
    return parser


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="Whose keys they are; never a key itself.")


def _add(config: RedisConfig, values: dict[str, Any]) -> None:
    from taco_gateway.api_keys.key_options import EntryError, read_owner
    from taco_gateway.api_keys.redis_key_store import KeyStore

    options = given(OwnerOptions, values)
    another = values.get("another", False)
    if another and options:
        raise ConfigurationError("--another leaves what the owner may have as it is")
    try:
        owner = read_owner({"name": values["name"], **options})
    except EntryError as error:
        raise ConfigurationError(str(error)) from None
    print(KeyStore(config).add(owner, another=another))


def _list(config: RedisConfig, values: dict[str, Any]) -> None:
    from taco_gateway.api_keys.key_options import owner_entry
    from taco_gateway.api_keys.redis_key_store import KeyStore

    for name, record in KeyStore(config).records().items():
        if isinstance(record, str):
            print(f"{name}\tmakes no sense: {record}")
            continue
        options = owner_entry(record.owner)
        del options["name"]
        shown = [f"{option}={value}" for option, value in options.items()]
        print("\t".join([name, f"keys={','.join(record.key_ids)}", *shown]))


def _revoke(config: RedisConfig, values: dict[str, Any]) -> None:
    from taco_gateway.api_keys.redis_key_store import KeyStore

    KeyStore(config).revoke(values["name"], values.get("key_id"))


def _import(config: RedisConfig, values: dict[str, Any]) -> None:
    from taco_gateway.api_keys.key_file import read_key_file
    from taco_gateway.api_keys.redis_key_store import KeyStore

    count = KeyStore(config).put(read_key_file(values["file"]))
    print(f"keys of {count} owners")
