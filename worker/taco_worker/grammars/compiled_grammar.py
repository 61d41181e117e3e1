"""A compiled grammar, which the matchers of sequences are copied from."""

from __future__ import annotations

from collections.abc import Callable

from taco_worker.grammars.matcher import Matcher


class CompiledGrammar:
    """Makes matchers at the beginning of a text.

    Copies share the states of their lexer, and with them the limit on such states: the texts of
    some sequences may use it up for all.

    Args:
        compile_grammar: compiles the grammar; it may raise GrammarError, the first time only.
    """

    def __init__(self, compile_grammar: Callable[[], Matcher]) -> None:
        self._compile = compile_grammar
        self._original: Matcher | None = compile_grammar()

    def copy(self) -> Matcher:
        """A matcher that shares states with other copies."""
        if self._original is None:
            self._original = self._compile()
        return self._original.deep_copy()

    def separate(self) -> Matcher:
        """A matcher that shares no states. Later copies share none with earlier ones.

        For a text that a copy cannot follow.
        """
        self._original = None
        return self._compile()
