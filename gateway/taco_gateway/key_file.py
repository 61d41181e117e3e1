"""`--api-key-file`: who may use the server, how much of it, and which models."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from taco_gateway.auth import ApiKey, key_hash
from taco_proto.errors import ConfigurationError
from taco_proto.requests import LOW_PRIORITY, Tenant

LIMITS = ("max_requests_per_minute", "max_tokens_per_minute", "max_concurrent_requests")
OPTIONS = ("name", "key", "key_hash", "weight", *LIMITS, "models", "priority")
MAX_NUMBER = 2**31 - 1
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")

Entry = Mapping[str, Any]


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
    for number, entry in enumerate(entries, start=1):
        try:
            name, hashes, api_key = _read_entry(entry)
            if name in names:
                raise _EntryError("name", "stands there twice")
            for hashed in hashes:
                if hashed in keys:
                    raise _EntryError("key", "stands there twice")
                keys[hashed] = api_key
        except _EntryError as error:
            raise ConfigurationError(f"{path}, entry {number}: {error}") from None
        names.add(name)
    return list(keys.items())


class _EntryError(Exception):
    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"{option} {problem}")


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


def _read_entry(entry: object) -> tuple[str, list[bytes], ApiKey]:
    if not isinstance(entry, dict):
        raise _EntryError("it", "must be a mapping of options")
    for option in entry:
        if option not in OPTIONS:
            shown = repr(option)[:100]
            raise _EntryError(shown, f"is no option; there are {', '.join(OPTIONS)}")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _EntryError("name", "must be a text of 1 to 128 characters")
    weight = _number(entry, "weight", 1.0, lambda value: 0 < value < math.inf, "above 0")
    limits = {
        option: int(_number(entry, option, 0, _is_limit, f"an integer, 1 to {MAX_NUMBER}"))
        for option in LIMITS
    }
    tenant = Tenant(name=name, weight=weight, **limits)
    return (
        name,
        _hashes(entry),
        ApiKey(tenant=tenant, models=_models(entry), priority=_priority(entry)),
    )


def _hashes(entry: Entry) -> list[bytes]:
    if ("key" in entry) == ("key_hash" in entry):
        raise _EntryError("key or key_hash", "must be given, one of the two")
    option = "key" if "key" in entry else "key_hash"
    values = entry[option] if isinstance(entry[option], list) else [entry[option]]
    if not values or not all(isinstance(value, str) and value for value in values):
        raise _EntryError(option, "must be a text, or a list of texts")
    if option == "key":
        return [key_hash(value.encode()) for value in values]
    matches = [_HASH.fullmatch(value) for value in values]
    if not all(matches):
        raise _EntryError("key_hash", "must be sha256: and 64 hexadecimal digits")
    return [bytes.fromhex(match[1]) for match in matches if match]


def _number(
    entry: Entry, option: str, default: float, is_good: Callable[[float], bool], range_: str
) -> float:
    value = entry.get(option, default)
    if option not in entry:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_good(value):
        raise _EntryError(option, f"must be {range_}")
    return value


def _is_limit(value: float) -> bool:
    return isinstance(value, int) and 1 <= value <= MAX_NUMBER


def _models(entry: Entry) -> frozenset[str] | None:
    models = entry.get("models")
    if "models" not in entry:
        return None
    if not isinstance(models, list) or not models or not all(isinstance(m, str) for m in models):
        raise _EntryError("models", "must be a list of names")
    return frozenset(models)


def _priority(entry: Entry) -> int:
    """Whoever has a place in the file does not jump the queue before those that have one too."""
    value = entry.get("priority", 0)
    if value == "low":
        return LOW_PRIORITY
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_NUMBER:
        raise _EntryError("priority", f"must be low, or an integer up to {MAX_NUMBER}")
    return value
