"""Compiled grammars: those that are slow do not delay others."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from support.byte_vocabulary import byte_tokenizer
from support.patience import PATIENCE_SECONDS
from taco_proto.grammars import Grammar, GrammarCommand, GrammarReady
from taco_worker.grammars.compiler import GrammarCompiler
from taco_worker.grammars.matcher import Matcher
from taco_worker.grammars.vocabulary import GrammarError

SMALL = [Grammar.of(f'start: "{letter}"') for letter in "abc"]
NAMES = [f"property_{number}" for number in range(3000)]
LARGE = Grammar.of(json.dumps({"grammars": [{"json_schema": {"enum": NAMES}}]}))


def compile_all(compiler: GrammarCompiler, grammars: list[Grammar]) -> list[GrammarReady]:
    """Wait for all; in the order of the reports."""
    found: list[GrammarReady] = []
    all_reported = threading.Semaphore(0)

    def report(ready: GrammarReady) -> None:
        found.append(ready)
        all_reported.release()

    compiler.apply(GrammarCommand(compiled=tuple(grammars)), report)
    for _ in grammars:
        assert all_reported.acquire(timeout=PATIENCE_SECONDS)
    return found


def test_a_large_grammar_delays_no_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    are_small_ready = threading.Event()
    compile_one = GrammarCompiler._matcher

    def waiting(vocabulary: Any, text: str) -> Matcher:
        if text == LARGE.text:
            assert are_small_ready.wait(PATIENCE_SECONDS)
        return compile_one(vocabulary, text)

    monkeypatch.setattr(GrammarCompiler, "_matcher", staticmethod(waiting))
    loaded: list[bool] = []

    def load() -> Any:
        loaded.append(True)
        return byte_tokenizer()

    compiler = GrammarCompiler(load)
    large_ready: list[GrammarReady] = []
    is_large_ready = threading.Event()

    def report_large(ready: GrammarReady) -> None:
        large_ready.append(ready)
        is_large_ready.set()

    compiler.apply(GrammarCommand(compiled=(LARGE,)), report_large)
    small = compile_all(compiler, SMALL)
    assert [(ready.hash, ready.error) for ready in small] == [(g.hash, "") for g in SMALL]
    assert not large_ready
    are_small_ready.set()
    assert is_large_ready.wait(PATIENCE_SECONDS)
    assert large_ready[0].error == ""
    assert loaded == [True]


def test_a_vocabulary_that_cannot_be_read_fails_every_grammar() -> None:
    def fail() -> Any:
        raise GrammarError("there is no vocabulary")

    compiler = GrammarCompiler(fail)
    found = compile_all(compiler, [*SMALL, LARGE])
    assert {ready.error for ready in found} == {"there is no vocabulary"}
