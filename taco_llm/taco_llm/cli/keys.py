"""`taco_llm keys`: add, list, revoke and import the API keys that gateways share in Redis."""

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
    """Parses a priority, for argparse: "low" or an integer."""
    return text if text == "low" else int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """Limits of a key's owner, as in a key file. `read_owner` checks them."""

    weight: float | None = flag(
        "The owner's share of the engine relative to other owners: weight 2 gets twice the share "
        "of weight 1. Default: 1.",
        default=None,
        parse=float,
    )
    max_requests_per_minute: int | None = flag(
        "Rate limit: maximum requests per minute. Default: no limit.",
        default=None,
        parse=int,
        metavar="REQUESTS",
    )
    max_tokens_per_minute: int | None = flag(
        "Rate limit: maximum tokens per minute, prompts and answers together. Default: no limit.",
        default=None,
        parse=int,
        metavar="TOKENS",
    )
    max_concurrent_requests: int | None = flag(
        "Maximum requests at the same time. Default: no limit.",
        default=None,
        parse=int,
        metavar="REQUESTS",
    )
    models: Sequence[str] | None = flag(
        "Names of the models that the owner may use. Default: all.",
        default=None,
        several="extend",
        metavar="MODEL",
    )
    priority: str | int | None = flag(
        "Highest priority of the owner's requests: a number, of which the lower runs sooner, or "
        "low for offline work. Default: 0.",
        default=None,
        parse=priority,
        metavar="PRIORITY",
    )


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "keys",
        help="Add, list and revoke the API keys that gateways share through Redis.",
        description="Adds, lists and revokes API keys in Redis. Gateways with --redis-keys apply "
        "the changes within seconds.",
    )
    commands = parser.add_subparsers(dest="keys_command", metavar="COMMAND", required=True)
    add = _add_command(commands, "add", _add, "Make a key and print it. It is not shown again.")
    _add_name(add)
    add.add_argument(
        "--another",
        action="store_true",
        help="Make one more key for an existing owner. Use it to rotate keys.",
    )
    add_flags(add, "limits of the owner", OwnerOptions)
    _add_command(commands, "list", _list, "Show the owners and their limits, but no keys.")
    revoke = _add_command(commands, "revoke", _revoke, "Revoke the keys of an owner.")
    _add_name(revoke)
    revoke.add_argument(
        "--key-id",
        metavar="ID",
        help="Revoke only the key with this id (see taco_llm keys list). Default: all keys.",
    )
    import_ = _add_command(
        commands,
        "import",
        _import,
        "Copy the keys of a key file to Redis. Existing owners of the same name are replaced.",
    )
    import_.add_argument(
        "file",
        metavar="FILE",
        help="Key file in JSON or YAML, in the format of the gateway's --api-key-file.",
    )


def _add_command(commands: Subparsers, name: str, command: Command, help_text: str) -> Parser:
    parser = commands.add_parser(name, help=help_text, description=help_text)
    add_flags(parser, "Redis", RedisArgs)

    def run(parser: Parser, namespace: argparse.Namespace) -> int:
        values = collect(parser, namespace)
        require(values, "redis_url", "--redis-url is needed, the address of Redis")
        config = RedisArgs(**given(RedisArgs, values)).redis_config()
        assert config is not None
        command(config, values)
        return 0

    parser.set_defaults(run=run, parser=parser)
    return parser


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name of the owner. It is not a key.")


def _add(config: RedisConfig, values: dict[str, Any]) -> None:
    from taco_gateway.api_keys.key_options import KeyOptionError, read_owner
    from taco_gateway.api_keys.redis_key_store import RedisKeyStore

    options = given(OwnerOptions, values)
    another = values.get("another", False)
    if another and options:
        raise ConfigurationError(
            "--another does not change the owner's limits: leave the other options out"
        )
    try:
        owner = read_owner({"name": values["name"], **options})
    except KeyOptionError as error:
        raise ConfigurationError(str(error)) from None
    print(RedisKeyStore(config).add(owner, another=another))


def _list(config: RedisConfig, values: dict[str, Any]) -> None:
    from taco_gateway.api_keys.key_options import owner_entry
    from taco_gateway.api_keys.redis_key_store import RedisKeyStore

    for name, record in RedisKeyStore(config).records().items():
        if isinstance(record, str):
            print(f"{name}\tinvalid: {record}")
            continue
        options = owner_entry(record.owner)
        del options["name"]
        shown = [f"{option}={value}" for option, value in options.items()]
        print("\t".join([name, f"keys={','.join(record.key_ids)}", *shown]))


def _revoke(config: RedisConfig, values: dict[str, Any]) -> None:
    from taco_gateway.api_keys.redis_key_store import RedisKeyStore

    RedisKeyStore(config).revoke(values["name"], values.get("key_id"))


def _import(config: RedisConfig, values: dict[str, Any]) -> None:
    from taco_gateway.api_keys.key_file import read_key_file
    from taco_gateway.api_keys.redis_key_store import RedisKeyStore

    count = RedisKeyStore(config).put(read_key_file(values["file"]))
    print(f"imported the keys of {count} owners")
