"""Turns constraints into grammars in child processes, and keeps the last ones."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from taco_gateway.engine.engine_client import EngineError
from taco_gateway.sandbox.process_pool import ProcessLostError, ProcessPool
from taco_proto.errors import InvalidParameterError
from taco_proto.grammars import MAX_GRAMMAR_BYTES, Grammar, RecentTable
from taco_proto.structured_outputs import PARAM, StructuredOutputsParams

MAX_DEPTH = 100  # nested objects and lists of a schema
_MAX_KEPT_BYTES = 2**24
_MAX_PROCESSES = 2
_MAX_WAITING = 64
_INVALID = "invalid_grammar"


class GrammarPool:
    """Makes grammars. Belongs to the event loop that it is first used on."""

    def __init__(self) -> None:
        self._processes = ProcessPool(
            "taco_gateway.text.grammar.grammar_process",
            max_processes=_MAX_PROCESSES,
            max_kept_bytes=2**28,
        )
        self._recent: RecentTable[Grammar] = RecentTable(_MAX_KEPT_BYTES)
        self._slots = asyncio.Semaphore(_MAX_PROCESSES)
        self._num_waiting = 0

    async def grammar(self, constraint: StructuredOutputsParams) -> Grammar:
        """The grammar of a constraint.

        Raises:
            InvalidParameterError: the constraint is invalid, too large, or matches no text.
            EngineError: 503, too many grammars wait.
        """
        request = await asyncio.to_thread(_request_of, constraint)
        key = hashlib.blake2b(request, digest_size=16).digest()
        if (known := self._recent.get(key)) is not None:
            return known
        if self._num_waiting >= _MAX_WAITING:
            raise EngineError(503, "The server is reading too many grammars.")
        self._num_waiting += 1
        try:
            async with self._slots:
                reply = await asyncio.to_thread(self._ask, request)
        finally:
            self._num_waiting -= 1
        if "error" in reply:
            raise _invalid(f"{constraint.kind} is not supported: {reply['error']}")
        grammar = Grammar.of(reply["text"])
        if self._recent.get(key) is None:
            self._recent.put(key, grammar, len(grammar.text))
        return grammar

    def close(self) -> None:
        self._processes.close()

    def _ask(self, request: bytes) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = self._processes.ask(json.loads(request))
        except ProcessLostError as error:
            if error.was_killed:
                raise EngineError(503, "The server has no memory for this grammar.") from None
            return {"error": "it takes too long to compile"}
        return reply


def _request_of(constraint: StructuredOutputsParams) -> bytes:
    """The message to the process; also identifies the constraint.

    Raises:
        InvalidParameterError: the constraint is too deep or too large, or is no JSON.
    """
    kind = constraint.kind
    value = constraint.value
    if isinstance(value, Mapping):
        value = dict(value)
    elif isinstance(value, str) and len(value) > MAX_GRAMMAR_BYTES:
        raise _too_large(kind, len(value))
    _check_depth(kind, value)
    options = {
        "disable_any_whitespace": constraint.disable_any_whitespace,
        "disable_additional_properties": constraint.disable_additional_properties,
        "whitespace_pattern": constraint.whitespace_pattern,
    }
    try:
        request = json.dumps({"kind": kind, "value": value, "options": options}).encode()
    except (TypeError, ValueError) as error:
        raise _invalid(f"{kind} is not valid JSON: {error}") from None
    if len(request) > 2 * MAX_GRAMMAR_BYTES:
        raise _too_large(kind, len(request))
    return request


def _check_depth(kind: str, value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for parent in level
            if isinstance(parent, dict | list | tuple)
            for part in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return
    raise _invalid(f"{kind} is nested too deeply: at most {MAX_DEPTH} levels are allowed")


def _too_large(kind: str, num_bytes: int) -> InvalidParameterError:
    return _invalid(
        f"{kind} is too large: {num_bytes} bytes; at most {MAX_GRAMMAR_BYTES} are allowed"
    )


def _invalid(message: str) -> InvalidParameterError:
    return InvalidParameterError(message, PARAM, _INVALID)
