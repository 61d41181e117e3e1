"""`--api-key-file`: reads API keys, their owners and their limits from JSON or YAML."""

import json
import re
from pathlib import Path

import yaml

from taco_gateway.api_keys.key_options import (
    OPTIONS,
    Entry,
    KeyOptionError,
    check_options,
    read_owner,
)
from taco_gateway.api_keys.key_ring import ApiKey, key_hash
from taco_proto.errors import ConfigurationError

FILE_OPTIONS = ("name", "key", "key_hash", *OPTIONS[1:])
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")


def read_key_file(path: str) -> list[tuple[bytes, ApiKey]]:
    """Reads a key file for `KeyRing`: the SHA-256 of each key and the permissions of its owner.

    The file holds a list. Each entry has a `name`, a `key` or a `key_hash`, and options. A list of
    several keys makes all of them valid, so that a key can be rotated.

    Raises:
        ConfigurationError: the file cannot be read, or an entry is invalid. No key is shown.
    """
    entries = _parse(path)
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(f"{path} must hold a list of keys, at least one")
    keys: dict[bytes, ApiKey] = {}
    names: set[str] = set()
    for number, value in enumerate(entries, start=1):
        try:
            entry = check_options(value, FILE_OPTIONS)
            owner = read_owner(entry)
            if owner.tenant.name in names:
                raise KeyOptionError("name", "is used twice")
            for hashed in _hashes(entry):
                if hashed in keys:
                    raise KeyOptionError("key", "is used twice")
                keys[hashed] = owner
        except KeyOptionError as error:
            raise ConfigurationError(f"{path}, entry {number}: {error}") from None
        names.add(owner.tenant.name)
    return list(keys.items())


def _parse(path: str) -> object:
    try:
        text = Path(path).read_text(encoding="utf-8")
        return json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigurationError(f"cannot read {path}: {reason}") from None
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path} is not valid JSON (line {error.lineno})") from None
    except yaml.YAMLError as error:  # its message quotes the file with the keys
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ConfigurationError(f"{path} is not valid YAML{where}") from None


def _hashes(entry: Entry) -> list[bytes]:
    if ("key" in entry) == ("key_hash" in entry):
        raise KeyOptionError("key or key_hash", "is required, exactly one of the two")
    option = "key" if "key" in entry else "key_hash"
    values = entry[option] if isinstance(entry[option], list) else [entry[option]]
    if not values or not all(isinstance(value, str) and value for value in values):
        raise KeyOptionError(option, "must be a string or a list of strings")
    if option == "key":
        return [key_hash(value.encode()) for value in values]
    matches = [_HASH.fullmatch(value) for value in values]
    if not all(matches):
        raise KeyOptionError("key_hash", "must be sha256: and 64 hexadecimal digits")
    return [bytes.fromhex(match[1]) for match in matches if match]
