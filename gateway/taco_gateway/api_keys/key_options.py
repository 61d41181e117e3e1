"""Options of an API key's owner (name, weight, rate limits, models), as in a key file or Redis."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from taco_gateway.api_keys.key_ring import ApiKey
from taco_proto.requests import LOW_PRIORITY, Tenant

LIMITS = ("max_requests_per_minute", "max_tokens_per_minute", "max_concurrent_requests")
OPTIONS = ("name", "weight", *LIMITS, "models", "priority")
MAX_NUMBER = 2**31 - 1
_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")

Entry = Mapping[str, Any]


class KeyOptionError(Exception):
    """An option is invalid; the message names the option and shows no key."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"{option} {problem}")


def check_options(entry: object, options: tuple[str, ...]) -> dict[str, Any]:
    """Returns the entry if it is a mapping of known options.

    Raises:
        KeyOptionError: it is not.
    """
    if not isinstance(entry, dict):
        raise KeyOptionError("it", "must be a mapping of options")
    for option in entry:
        if option not in options:
            known = ", ".join(options)
            raise KeyOptionError(repr(option)[:100], f"is not an option; the options are {known}")
    return entry


def read_owner(entry: Entry) -> ApiKey:
    """Reads the permissions of an owner from the options in `OPTIONS`.

    Raises:
        KeyOptionError: a value is out of range.
    """
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise KeyOptionError("name", "must be a string of 1 to 128 characters")
    weight = _number(entry, "weight", 1.0, lambda value: 0 < value < math.inf, "above 0")
    limits = {
        option: int(_number(entry, option, 0, _is_limit, f"an integer, 1 to {MAX_NUMBER}"))
        for option in LIMITS
    }
    tenant = Tenant(name=name, weight=weight, **limits)
    return ApiKey(tenant=tenant, models=_models(entry), priority=_priority(entry))


def owner_entry(owner: ApiKey) -> dict[str, Any]:
    """The inverse of `read_owner`; options with their default value are left out."""
    tenant = owner.tenant
    entry: dict[str, Any] = {"name": tenant.name}
    if tenant.weight != 1.0:
        entry["weight"] = tenant.weight
    entry |= {limit: getattr(tenant, limit) for limit in LIMITS if getattr(tenant, limit)}
    if owner.models is not None:
        entry["models"] = sorted(owner.models)
    if owner.priority:
        entry["priority"] = "low" if owner.priority == LOW_PRIORITY else owner.priority
    return entry


def _number(
    entry: Entry, option: str, default: float, is_good: Callable[[float], bool], range_: str
) -> float:
    value = entry.get(option, default)
    if option not in entry:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_good(value):
        raise KeyOptionError(option, f"must be {range_}")
    return value


def _is_limit(value: float) -> bool:
    return isinstance(value, int) and 1 <= value <= MAX_NUMBER


def _models(entry: Entry) -> frozenset[str] | None:
    models = entry.get("models")
    if "models" not in entry:
        return None
    if not isinstance(models, list) or not models or not all(isinstance(m, str) for m in models):
        raise KeyOptionError("models", "must be a list of names")
    return frozenset(models)


def _priority(entry: Entry) -> int:
    """The default is 0: a key without the option is no more urgent than other keys."""
    value = entry.get("priority", 0)
    if value == "low":
        return LOW_PRIORITY
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_NUMBER:
        raise KeyOptionError("priority", f"must be low, or an integer up to {MAX_NUMBER}")
    return value
