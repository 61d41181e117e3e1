"""Strict JSON parser for request bodies, with limits on depth and on the number of values.

It rejects everything that two parsers could read differently. The number of values is checked
before validation, which takes microseconds per value: without the limit a body of a few megabytes
would take seconds.
"""

import json
import math
import re
from typing import Any, NoReturn

from taco_gateway.api_errors import ApiError
from taco_gateway.protocol.token_ids import MAX_TOKEN_IDS

MAX_LIST_ITEMS = 4096  # of a list, except lists of integers
MAX_OBJECT_KEYS = 4096  # a JSON schema may have thousands of properties
MAX_DEPTH = 128
MAX_VALUES = 2**15  # in the whole body, except lists of integers

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json_object(raw: bytes | bytearray) -> dict[str, Any]:
    """Parses one JSON object.

    Beyond RFC 8259's grammar this rejects NaN and infinities (also as 1e400), duplicate keys, lone
    surrogates, and nesting deeper than the interpreter's own limit.

    Raises:
        ApiError: 400.
    """
    if not raw.strip():
        raise _invalid("the body is empty")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_object_without_duplicates,
            parse_constant=_reject_constant,
            parse_float=_finite_float,
        )
        if _SURROGATE_ESCAPE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError:
        raise _invalid("the body is not UTF-8") from None
    except UnicodeEncodeError:
        raise _invalid("a string holds a lone surrogate") from None
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except ValueError:  # an integer of more digits than the interpreter converts
        raise _invalid("a number is too large") from None
    if not isinstance(value, dict):
        raise _invalid("the top level must be an object")
    return value


def check_counts(body: dict[str, Any]) -> None:
    """Checks the number of values in a body; visits at most `MAX_VALUES` of them.

    Raises:
        ApiError: 400, which names the list or object with too many.
    """
    num_values = 0
    pending: list[tuple[int, str, dict[str, Any] | list[Any]]] = [(1, "", body)]
    while pending:
        depth, path, value = pending.pop()
        if depth > MAX_DEPTH:
            raise _invalid("it is nested too deeply")
        if isinstance(value, list):
            if is_integers(value):
                _check_count(path, len(value), MAX_TOKEN_IDS, "integers")
                continue
            _check_count(path, len(value), MAX_LIST_ITEMS, "items")
            items = [
                (depth + 1, f"{path}[{i}]", item)
                for i, item in enumerate(value)
                if _holds_values(item)
            ]
        else:
            _check_count(path, len(value), MAX_OBJECT_KEYS, "keys")
            items = [
                (depth + 1, f"{path}.{name[:40]}" if path else name[:40], item)
                for name, item in value.items()
                if _holds_values(item)
            ]
        num_values += len(value)
        if num_values > MAX_VALUES:
            message = f"The request body has more than {MAX_VALUES} values."
            raise ApiError(400, message, param=_top(path))
        pending += items


def is_integers(value: list[Any]) -> bool:
    """Whether a list has integers only; True and False do not count as integers."""
    return bool(value) and type(value[0]) is int and set(map(type, value)) == {int}


def _holds_values(value: object) -> bool:
    return isinstance(value, dict | list)


def _check_count(path: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        where = path or "The request body"
        message = f"{where} has {count} {what}; at most {limit} are allowed."
        raise ApiError(400, message, param=_top(path))


def _top(path: str) -> str | None:
    """The field of the request that holds `path`."""
    return re.split(r"[.\[]", path, maxsplit=1)[0] or None


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _invalid("an object has the same key twice")
    return result


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _invalid("a number is too large")
    return value


def _reject_constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not a JSON value")


def _invalid(reason: str) -> ApiError:
    return ApiError(400, f"The request body is not valid JSON: {reason}.", code="invalid_json")
