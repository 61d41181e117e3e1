"""`--api-key-file`: who may use the server, how much of it, and which models."""

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
    """The keys of a JSON or YAML file, for `KeyRing`: SHA-256 of each, and what its owner may have.

    The file holds a list; each entry has a `name`, a `key` or a `key_hash` (one or a list, of which
    each is good: for a change of keys), and options.

    Raises:
        ConfigurationError: it cannot be read, or an entry makes no sense. No key is shown.
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
                raise KeyOptionError("name", "stands there twice")
            for hashed in _hashes(entry):
                if hashed in keys:
                    raise KeyOptionError("key", "stands there twice")
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
    except yaml.YAMLError as error:  # whose text quotes the file, keys and all
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ConfigurationError(f"{path} is not valid YAML{where}") from None


def _hashes(entry: Entry) -> list[bytes]:
    if ("key" in entry) == ("key_hash" in entry):
        raise KeyOptionError("key or key_hash", "must be given, one of the two")
    option = "key" if "key" in entry else "key_hash"
    values = entry[option] if isinstance(entry[option], list) else [entry[option]]
    if not values or not all(isinstance(value, str) and value for value in values):
        raise KeyOptionError(option, "must be a text, or a list of texts")
    if option == "key":
        return [key_hash(value.encode()) for value in values]
    matches = [_HASH.fullmatch(value) for value in values]
    if not all(matches):
        raise KeyOptionError("key_hash", "must be sha256: and 64 hexadecimal digits")
    return [bytes.fromhex(match[1]) for match in matches if match]
