"""Checks that a canonical grammar can be compiled and allows a text, and says where it fails."""

import json
import re
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from taco_gateway.text.grammar.canonical import (
    ConstraintError,
    Path,
    at_keyword,
    canonical_grammar,
    canonical_text,
    parse_schema,
    subschemas,
)
from taco_gateway.text.grammar.endless_schemas import is_endless
from taco_gateway.text.grammar.object_schema import NOT_WRITABLE
from taco_gateway.text.grammar.patterns import search
from taco_proto.grammars import MAX_ALTERNATIVES, MAX_FORCED_BYTES

_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[([^\]]*)\]")
_NUMBER = re.compile(r"\bfor '(\w+)'")  # such as a length that is too large for the library
_OVERLAP = "oneOf constraints are not supported"
_EMPTY = "Unsatisfiable schema: "
_MAX_ERROR_CHARS = 300
# Smaller than the library's own, 500,000 and 1,000,000: they bound the worker's memory and time.
_LIMITS = LLParserLimits(
    max_items_in_row=MAX_ALTERNATIVES,
    max_grammar_size=200_000,
    initial_lexer_fuel=1_000_000,
    verbose_errors=False,
)


_BYTES = [bytes([byte]) for byte in range(256)]


class _ByteTokens:
    """A vocabulary of single bytes: enough to see whether any text is allowed.

    Args:
        vocab_size: number of tokens, most of them without text.
    """

    special_token_ids = [256]  # noqa: RUF012
    bos_token_id = None
    eos_token_id = 256

    def __init__(self, vocab_size: int) -> None:
        self.tokens = [*_BYTES, b"\xff<eos>", *[b""] * (vocab_size - len(_BYTES) - 1)]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _tokenizer(vocab_size: int) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_ByteTokens(vocab_size)), slices=[])


def check_grammar(kind: str, value: Any, text: str, vocab_size: int = 0) -> None:
    """Checks a canonical grammar.

    Args:
        kind, value: the constraint that the grammar was made from.
        text: the grammar.
        vocab_size: number of tokens that the grammar may name.

    Raises:
        ConstraintError: it cannot be compiled, allows no text, or forces a text that is too long.
    """
    matcher = LLMatcher(_tokenizer(vocab_size), text, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise ConstraintError(_explained(kind, value, matcher.get_error()))
    matcher.compute_bitmask()
    if matcher.is_error():
        raise ConstraintError("no text matches it" if kind != "json" else "no value is valid")
    if len(matcher.compute_ff_bytes()) > MAX_FORCED_BYTES:
        raise ConstraintError(f"it forces a text of more than {MAX_FORCED_BYTES} bytes")
    check_finite(kind, value)


def check_finite(kind: str, value: Any) -> None:
    """Raises ConstraintError if a constraint is a schema of which no finite value is valid."""
    if kind == "json" and is_endless(parse_schema(value)):
        raise ConstraintError("no value is valid: each would be infinitely deep")


def check_text_pattern(pattern: str) -> None:
    """Checks a JSON schema's pattern for texts that are not written as JSON.

    Raises:
        ConstraintError: it cannot be enforced.
    """
    if problem := pattern_problem(pattern):
        raise ConstraintError(f"keyword 'pattern': {problem}")
    text = canonical_text({"lark_grammar": f"start: {search(pattern)}"})
    if LLMatcher(_tokenizer(0), text, log_level=0, limits=_LIMITS).is_error():
        raise ConstraintError(f"keyword 'pattern' {NOT_WRITABLE}")


def pattern_problem(pattern: str) -> str:
    """Why a JSON schema's pattern cannot be enforced; empty: it can."""
    text = canonical_grammar("json", {"pattern": pattern}, {})
    matcher = LLMatcher(_tokenizer(0), text, log_level=0, limits=_LIMITS)
    return _short(matcher.get_error()) if matcher.is_error() else ""


def _short(error: str) -> str:
    """The library's error in one line, without the grammar."""
    return " ".join(error.partition("\n<state>")[0].split())[:_MAX_ERROR_CHARS]


def _explained(kind: str, value: Any, error: str) -> str:
    """The library's error, with the path to the keyword that it means."""
    message = error.partition("\n<state>")[0].strip()
    short = _short(error)
    if kind != "json":
        return short
    if _OVERLAP in message:
        short = "its alternatives overlap, which is not supported: use anyOf"
    if short.startswith(_EMPTY):
        return f"no value is valid: {short.removeprefix(_EMPTY)}"
    found = _place(parse_schema(value), message)
    if found is None:
        return short
    return at_keyword(*found, short)


def _place(schema: Any, message: str) -> tuple[Path, str] | None:
    """The path of the schema that an error is about, and its keyword; None: not known."""
    unknown = _UNKNOWN_KEYS.search(message)
    keys = json.loads(f"[{unknown[1]}]") if unknown else _NUMBER.findall(message)
    if _OVERLAP in message:
        keys = ["oneOf"]
    for path, part in subschemas(schema):
        for keyword in keys:
            if keyword in part:
                return path, keyword
        for keyword in ("$ref", "pattern", "format", "type"):
            value = part.get(keyword)
            values = value if isinstance(value, list) else [value]
            if not keys and any(_names(message, keyword, value) for value in values):
                return path, keyword
    return None if keys else _pattern_place(schema)


def _pattern_place(schema: Any) -> tuple[Path, str] | None:
    """The place of a pattern that cannot be enforced. The library quotes it in its own notation."""
    for path, part in subschemas(schema):
        pattern, named = part.get("pattern"), part.get("patternProperties")
        if isinstance(pattern, str) and pattern_problem(pattern):
            return path, "pattern"
        if isinstance(named, dict) and any(map(pattern_problem, named)):
            return path, "patternProperties"
    return None


def _names(message: str, keyword: str, value: Any) -> bool:
    """Whether an error quotes the value of a keyword."""
    if not isinstance(value, str):
        return False
    quoted = value.removeprefix("#") if keyword == "$ref" else value
    forms = (
        f"'{quoted}'" in message,
        f"    {quoted}\n" in message,
        message.endswith(f": {quoted}"),
    )
    return bool(quoted) and any(forms)
