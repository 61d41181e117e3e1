"""Threads that make grammars, and callers that leave."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.patience import PATIENCE_SECONDS, until
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.text.grammar import grammar_pool
from taco_gateway.text.grammar.grammar_pool import GrammarPool
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import InvalidParameterError
from taco_proto.structured_outputs import StructuredOutputsParams


async def test_a_thread_keeps_its_slot_when_its_caller_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, released, entered = GrammarPool(), threading.Event(), []

    def ask(request: bytes) -> dict[str, Any]:
        entered.append(request)
        assert released.wait(PATIENCE_SECONDS)
        return {"text": "start: /a/"}

    async def are_inside() -> bool:
        return len(entered) == grammar_pool._MAX_PROCESSES

    def make(number: int) -> asyncio.Task[Any]:
        return asyncio.create_task(pool.grammar(StructuredOutputsParams(regex=f"a{number}")))

    monkeypatch.setattr(pool, "_ask", ask)
    tasks = [make(number) for number in range(10)]
    await until(are_inside, "the threads")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert pool._num_waiting == 0
    later = make(99)
    await until(lambda: has_waiting(pool), "the next request")
    assert len(entered) == grammar_pool._MAX_PROCESSES
    released.set()
    assert (await later).text == "start: /a/"
    assert len(entered) == grammar_pool._MAX_PROCESSES + 1


async def has_waiting(pool: GrammarPool) -> bool:
    return pool._num_waiting == 1


async def test_an_error_of_a_thread_is_that_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = GrammarPool()

    def fail(request: bytes) -> dict[str, Any]:
        raise EngineError(503, "no memory")

    monkeypatch.setattr(pool, "_ask", fail)
    for number in range(2 * grammar_pool._MAX_PROCESSES):
        with pytest.raises(EngineError, match="no memory"):
            await pool.grammar(StructuredOutputsParams(regex=f"b{number}"))


async def test_a_grammar_may_name_the_token_ids_of_the_model() -> None:
    tokenizer = SimpleNamespace(added_tokens={}, special_ids=frozenset(), vocab_size=1001)
    pool = GrammarPool(cast("Tokenizer", tokenizer))
    try:
        await pool.grammar(StructuredOutputsParams(grammar="start: <[1000]>"))
        with pytest.raises(InvalidParameterError, match="1001"):
            await pool.grammar(StructuredOutputsParams(grammar="start: <[1001]>"))
    finally:
        pool.close()


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "(d{1000}){1000}"},
        {"choice": ["ab " * 30_000]},
        {"json": {"const": "ab" * 40_000}},
    ],
)
async def test_a_grammar_may_not_force_a_text_that_holds_up_workers(
    constraint: dict[str, Any],
) -> None:
    pool = GrammarPool()
    try:
        with pytest.raises(InvalidParameterError, match="a text of more than 65536 bytes"):
            await pool.grammar(StructuredOutputsParams(**constraint))
        await pool.grammar(StructuredOutputsParams(choice=["ab " * 20_000]))
    finally:
        pool.close()
