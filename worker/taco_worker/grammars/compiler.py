"""Compiles grammars in threads, and keeps compiled ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from taco_proto.grammars import Grammar, GrammarCommand, GrammarReady, RecentTable
from taco_proto.token_budget import split_budget
from taco_worker.grammars.budgeted_matcher import BudgetedMatcher, BudgetRules
from taco_worker.grammars.call_thread import CallThread
from taco_worker.grammars.compiled_grammar import CompiledGrammar
from taco_worker.grammars.matcher import Matcher
from taco_worker.grammars.vocabulary import GrammarError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

logger = logging.getLogger("taco.worker")

MAX_CACHE_BYTES = 2**28
_NICENESS = 10
# Estimate of a compiled grammar's memory: a schema of 3,000 properties and 94 KiB takes 31 MB.
_BASE_BYTES = 2**16
_BYTES_PER_CHAR = 400


class GrammarCompiler:
    """Compiles grammars in separate threads. Its methods belong to the model's thread.

    Large grammars have their own thread, of lower priority.

    A grammar that the scheduler has named stays until the scheduler releases it. Released grammars
    stay in a cache, which forgets those used longest ago.
    """

    def __init__(self, load_vocabulary: Callable[[], LLTokenizer]) -> None:
        """
        Args:
            load_vocabulary: called in a thread before the first grammar is compiled, and again
                only if it raises GrammarError.
        """
        self._load_vocabulary = load_vocabulary
        self._vocabulary: LLTokenizer | None = None
        self._is_loading = threading.Lock()
        self._thread = CallThread("grammar-compiler")
        self._large_thread = CallThread("large-grammars", niceness=_NICENESS)
        self._used: dict[bytes, Future[CompiledGrammar]] = {}
        self._num_bytes: dict[bytes, int] = {}
        self._released: RecentTable[Future[CompiledGrammar]] = RecentTable(MAX_CACHE_BYTES)

    def apply(self, command: GrammarCommand, report: Callable[[GrammarReady], None]) -> None:
        """Release grammars, then compile others; `report` is called in a thread for each."""
        for key in command.released:
            self._release(key)
        for grammar in command.compiled:
            self._use(grammar, report)

    def reset(self) -> None:
        """Release all grammars: a new stream begins."""
        for key in list(self._used):
            self._release(key)

    def find(self, key: bytes) -> Future[CompiledGrammar] | None:
        """A grammar that has been named.

        None if the scheduler has not named the grammar, or has released it.
        """
        return self._used.get(key)

    def _use(self, grammar: Grammar, report: Callable[[GrammarReady], None]) -> None:
        key = grammar.hash
        future = self._used.get(key) or self._released.pop(key)
        if future is None:
            thread = self._large_thread if grammar.is_large else self._thread
            future = thread.submit(lambda: self._compile(grammar))
        self._used[key] = future
        self._num_bytes[key] = _BASE_BYTES + _BYTES_PER_CHAR * len(grammar.text)
        future.add_done_callback(lambda done: report(GrammarReady(key, _error_of(done))))

    def _release(self, key: bytes) -> None:
        future = self._used.pop(key, None)
        if future is None:
            return
        num_bytes = self._num_bytes.pop(key)
        if not future.done() or future.exception() is None:
            self._released.put(key, future, num_bytes)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        with self._is_loading:
            if self._vocabulary is None:
                self._vocabulary = self._load_vocabulary()
            vocabulary = self._vocabulary
        return CompiledGrammar(lambda: self._matcher(vocabulary, grammar.text))

    @staticmethod
    def _matcher(vocabulary: LLTokenizer, text: str) -> Matcher:
        from llguidance import LLMatcher

        from taco_worker.grammars.limits import parser_limits

        grammar, budget = split_budget(text)
        matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits())
        if matcher.is_error():
            first = matcher.get_error().partition("\n")[0]
            raise GrammarError(f"the grammar cannot be compiled: {first}")
        if budget is not None:
            return BudgetedMatcher(matcher, BudgetRules(budget, vocabulary))
        return matcher


def _error_of(done: Future[CompiledGrammar]) -> str:
    error = done.exception()
    if error is None:
        return ""
    if isinstance(error, GrammarError):
        return str(error)
    logger.error("compiling a grammar failed", exc_info=error)
    return "the grammar cannot be compiled"
