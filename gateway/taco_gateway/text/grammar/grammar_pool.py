"""Turns constraints into grammars in child processes, and keeps the last ones."""

import asyncio
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from taco_gateway.engine.engine_client import EngineError
from taco_gateway.sandbox.process_pool import ProcessLostError, ProcessPool
from taco_gateway.text.grammar.answer_grammar import answer_grammar, reasoning_budget
from taco_gateway.text.grammar.answer_rules import AnswerRules, ids_without_text
from taco_gateway.text.grammar.canonical import ConstraintError, without_forced_tokens
from taco_gateway.text.grammar.structural_tags import KIND, structural_tag_grammar
from taco_gateway.text.grammar.tag_fields import TagTokens
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import InvalidParameterError
from taco_proto.grammars import MAX_GRAMMAR_BYTES, Grammar, RecentTable
from taco_proto.structured_outputs import PARAM, StructuredOutputsParams
from taco_proto.token_budget import TokenBudget, with_budget

MAX_DEPTH = 100  # nested objects and lists of a schema
_MAX_KEPT_BYTES = 2**24
_MAX_PROCESSES = 2
_MAX_WAITING = 64
_INVALID = "invalid_grammar"


class GrammarPool:
    """Makes grammars. Belongs to the event loop that it is first used on.

    Args:
        tokenizer: of the model; None: no token is recognized as a whole.
    """

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokens = _tag_tokens(tokenizer)
        added = () if tokenizer is None else tokenizer.added_tokens
        self._added_token = re.compile("|".join(map(re.escape, added)) or r"(?!)")
        self._processes = ProcessPool(
            "taco_gateway.text.grammar.grammar_process",
            max_processes=_MAX_PROCESSES,
            max_kept_bytes=2**28,
        )
        self._recent: RecentTable[Grammar] = RecentTable(_MAX_KEPT_BYTES)
        self._slots = asyncio.Semaphore(_MAX_PROCESSES)
        self._num_waiting = 0

    async def grammar(
        self,
        constraint: StructuredOutputsParams | None,
        rules: AnswerRules | None = None,
        end_ids: Collection[int] = (),
    ) -> Grammar:
        """The grammar of an answer.

        Args:
            constraint: on its content, or on the whole text if there are no rules.
            rules: the other parts of the answer. At least one of both is given.
            end_ids: tokens that end the answer.

        Raises:
            InvalidParameterError: the constraint or a tool is invalid, too large, or matches no
                text.
            EngineError: 503, too many grammars wait.
        """
        tokens = replace(self._tokens, end_ids=frozenset(end_ids))
        budget = None if rules is None else reasoning_budget(rules)
        request = await asyncio.to_thread(_request_of, constraint, rules, budget, tokens)
        key = hashlib.blake2b(request, digest_size=16).digest()
        if (known := self._recent.get(key)) is not None:
            return known
        if self._num_waiting >= _MAX_WAITING:
            raise EngineError(503, "The server is reading too many grammars.")
        self._num_waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._num_waiting -= 1
        # A thread still runs when its caller is cancelled: its slot stays taken until it is done.
        asking = asyncio.create_task(asyncio.to_thread(self._ask, request))
        asking.add_done_callback(self._free_slot)
        reply = await asyncio.shield(asking)
        if "error" in reply:
            raise _rejected(ConstraintError(reply["error"], reply.get("param")), constraint)
        grammar = await asyncio.to_thread(self._canonical, reply["text"], budget)
        if self._recent.get(key) is None:
            self._recent.put(key, grammar, len(grammar.text))
        return grammar

    def close(self) -> None:
        self._processes.close()

    def _canonical(self, text: str, budget: TokenBudget | None) -> Grammar:
        # Backslashes may be escapes within the spelling of a token.
        if self._added_token.search(text.replace("\\", "")):
            text = without_forced_tokens(text)
        return Grammar.of(text if budget is None else with_budget(text, budget))

    def _free_slot(self, asking: asyncio.Task[dict[str, Any]]) -> None:
        self._slots.release()
        if not asking.cancelled():
            asking.exception()  # its caller may have left

    def _ask(self, request: bytes) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = self._processes.ask(json.loads(request))
        except ProcessLostError as error:
            if error.was_killed:
                raise EngineError(503, "The server has no memory for this grammar.") from None
            return {"error": "it takes too long to compile"}
        return reply


def _tag_tokens(tokenizer: Tokenizer | None) -> TagTokens:
    if tokenizer is None:
        return TagTokens()
    added = tokenizer.added_tokens
    hidden = ids_without_text(added, tokenizer.special_ids)
    without_text = {text: token_id for text, token_id in added.items() if token_id in hidden}
    return TagTokens(without_text=without_text, vocab_size=tokenizer.vocab_size)


def _request_of(
    constraint: StructuredOutputsParams | None,
    rules: AnswerRules | None,
    budget: TokenBudget | None,
    tokens: TagTokens,
) -> bytes:
    """The message to the process; also identifies the grammar.

    Raises:
        InvalidParameterError: the constraint or a tool is too deep or too large, or is no JSON.
    """
    message: dict[str, Any] = {}
    try:
        if constraint is not None:
            message = _checked_constraint(constraint)
            if constraint.kind == KIND:
                tag = structural_tag_grammar(constraint.value, tokens)
                message = {"tag": asdict(tag), "vocab_size": tokens.vocab_size}
            elif constraint.kind == "grammar":
                message["vocab_size"] = tokens.vocab_size
        if rules is not None:
            answer = answer_grammar(rules, has_content=constraint is not None)
            message |= {"answer": asdict(answer), "vocab_size": rules.vocab_size}
            if budget is not None:
                message["budget"] = asdict(budget)
    except ConstraintError as error:
        raise _rejected(error, constraint) from None
    try:
        request = json.dumps(message).encode()
    except (TypeError, ValueError) as error:
        name = "tools" if constraint is None else constraint.kind
        raise _invalid(f"{name} is not valid JSON: {error}") from None
    if len(request) > 2 * MAX_GRAMMAR_BYTES:
        raise _too_large("the constraint with the tools", len(request))
    return request


def _checked_constraint(constraint: StructuredOutputsParams) -> dict[str, Any]:
    """The constraint as a message.

    Raises:
        InvalidParameterError: it is too deep or too large.
    """
    kind, value = constraint.kind, constraint.value
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
    return {"kind": kind, "value": value, "options": options}


def _rejected(
    error: ConstraintError, constraint: StructuredOutputsParams | None
) -> InvalidParameterError:
    if error.param == KIND:
        return _invalid(str(error))
    if error.param is not None:
        return InvalidParameterError(str(error), error.param, _INVALID)
    name = "tools" if constraint is None else constraint.kind
    return _invalid(f"{name} is not supported: {error}")


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
