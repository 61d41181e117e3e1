"""A broken tokenizer.json is one error for clients: no panic, no other file, no memory."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from support.checkpoint_tokenizer import EOS_TOKEN_ID, trained_tokenizer
from support.patience import PATIENCE_SECONDS
from taco_proto.grammars import Grammar, GrammarCommand, GrammarReady
from taco_worker.grammars.compiler import GrammarCompiler
from taco_worker.grammars.vocabulary import GrammarError, load_vocabulary

GRAMMAR = Grammar.of(json.dumps({"grammars": [{"lark_grammar": "start: /[a-z]{3}/"}]}))
_MAX_NEW_MEMORY = 2**29

Tokenizer = dict[str, Any]


def set_token(text: str, token_id: int) -> Callable[[Tokenizer], None]:
    return lambda tokenizer: tokenizer["model"]["vocab"].update({text: token_id})


def add_token(text: str, token_id: int) -> Callable[[Tokenizer], None]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    token = {"id": token_id, "content": text, "special": True, **flags}
    return lambda tokenizer: tokenizer["added_tokens"].append(token)


def nest_normalizers(tokenizer: Tokenizer) -> None:
    outer = tokenizer["normalizer"] = {"type": "Sequence", "normalizers": []}
    for _ in range(300):
        inner: dict[str, Any] = {"type": "Sequence", "normalizers": []}
        outer["normalizers"].append(inner)
        outer = inner


def set_pattern(tokenizer: Tokenizer) -> None:
    pattern = {"Regex": "(a+)+$("}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = split


# What is wrong, and words of the error.
BROKEN: dict[str, tuple[Callable[[Tokenizer], None], str]] = {
    "no model": (lambda t: t.pop("model"), "Model missing"),
    "no vocabulary": (lambda t: t["model"]["vocab"].clear(), "out of vocabulary"),
    "a negative id": (set_token("zz", -1), "integer `-1`"),
    "an id of 33 bits": (set_token("zz", 2**32), "expected u32"),
    "a token of 2 MB": (set_token("a" * 2_000_000, 384), ""),
    "an unknown merge": (lambda t: t["model"].update(merges=[["q", "zz"]]), "out of vocabulary"),
    "no decoder": (lambda t: t.update(decoder=None), "decoder"),
    "an invalid pattern": (set_pattern, "Parsing error"),
    "deep nesting": (nest_normalizers, "recursion limit"),
}
# Odd, but every token keeps its meaning.
HARMLESS = {
    "a large id": set_token("zz", 2**31 - 1),
    "an added token with a large id": add_token("<x>", 10**9),
    "an empty added token": add_token("", 5),
}


def saved(folder: Path, change: Callable[[Tokenizer], None]) -> Path:
    tokenizer = json.loads(trained_tokenizer().to_str())
    change(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_an_error(tmp_path: Path, name: str) -> None:
    change, words = BROKEN[name]
    with pytest.raises(GrammarError, match="cannot use this model's tokenizer: ") as error:
        load_vocabulary(saved(tmp_path, change), 400, [EOS_TOKEN_ID])
    assert words in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("name", HARMLESS)
def test_large_ids_take_no_memory(tmp_path: Path, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    vocabulary = load_vocabulary(saved(tmp_path, HARMLESS[name]), 400, [EOS_TOKEN_ID])
    matcher = LLMatcher(vocabulary, GRAMMAR.text, log_level=0)
    assert matcher.validate_tokens(vocabulary.tokenize_str("abc")) > 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < _MAX_NEW_MEMORY


@pytest.mark.parametrize("content", [b"", b"[]", b"/dev/zero", b"  tokenizer.json", b"\xff{}"])
def test_only_an_object_is_read(tmp_path: Path, content: bytes) -> None:
    """llguidance would take another text for the path of a file."""
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(GrammarError, match="cannot use this model's tokenizer"):
        load_vocabulary(tmp_path, 400, [EOS_TOKEN_ID])


def test_a_panic_is_reported_and_the_next_grammar_is_compiled(tmp_path: Path) -> None:
    """The panic does not end the thread of the compiler."""
    paths = [saved(tmp_path, BROKEN["a token of 2 MB"][0])]

    def load() -> Any:
        if paths:
            return load_vocabulary(paths.pop(), 400, [EOS_TOKEN_ID])
        return load_vocabulary(saved(tmp_path, lambda _: None), 400, [EOS_TOKEN_ID])

    compiler = GrammarCompiler(load)
    found: list[GrammarReady] = []
    for grammar in (GRAMMAR, Grammar.of(GRAMMAR.text.replace("3", "4"))):
        compiler.apply(GrammarCommand(compiled=(grammar,)), found.append)
        future = compiler.find(grammar.hash)
        assert future is not None
        future.exception(PATIENCE_SECONDS)
    assert "cannot use this model's tokenizer" in found[0].error
    assert found[1].error == ""
