"""Child process that turns constraints into grammars; `grammar_pool` starts it.

A client's schema or regular expression may take any time and memory to compile; a process can be
stopped. A request is {"kind", "value", "options"} or {"tag"} for a constraint on the text,
{"answer"} for the grammar of an answer's parts, or both, with {"vocab_size"} if it may name token
ids. A tag and an answer are {"text", "parts"}, as `LarkGrammar` has them. The reply is {"text"}, or
{"error"} with the {"param"} that is wrong.
"""

import os
from typing import Any

from taco_gateway.sandbox.child_loop import serve_json
from taco_gateway.text.grammar.answer_rules import param_of
from taco_gateway.text.grammar.canonical import (
    ConstraintError,
    canonical_grammar,
    canonical_text,
    grammar_object,
)
from taco_gateway.text.grammar.enforceable import enforceable
from taco_gateway.text.grammar.lark_builder import CONTENT, PATTERN, GrammarPart
from taco_gateway.text.grammar.patterns import search
from taco_gateway.text.grammar.validation import check_finite, check_grammar, check_text_pattern
from taco_proto.grammars import MAX_GRAMMAR_BYTES

CPU_SECONDS = 5.0
MAX_MEMORY_BYTES = 2**31
NICENESS = 10  # tokens of other requests come first


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"text": grammar_text(request)}
    except (ConstraintError, UnicodeEncodeError) as error:
        return {"error": str(error), "param": getattr(error, "param", None)}
    except (MemoryError, RecursionError):
        return {"error": "it is too complex", "param": None}


def grammar_text(request: dict[str, Any]) -> str:
    """The canonical grammar of a request, which has been checked.

    Raises:
        ConstraintError: a constraint is invalid.
    """
    content: list[dict[str, Any]] = []
    if (kind := request.get("kind")) is not None:
        content = [grammar_object(kind, request["value"], request["options"])]
        check_grammar(kind, request["value"], _sized(*content), request.get("vocab_size", 0))
    elif (tag := request.get("tag")) is not None:
        content = _checked(tag["text"], _parts(tag), [], request["vocab_size"])
    if (answer := request.get("answer")) is None:
        return _sized(*content)
    others = [{**content[0], "name": CONTENT}, *content[1:]] if content else []
    return _sized(*_checked(answer["text"], _parts(answer), others, request["vocab_size"]))


def _parts(grammar: dict[str, Any]) -> list[GrammarPart]:
    return [GrammarPart(**part) for part in grammar["parts"]]


def _of_part(part: GrammarPart) -> dict[str, Any]:
    """Raises ConstraintError with the part's place if it is in no known form or has no end."""
    try:
        found = grammar_object(part.kind, part.value, part.options)
        check_finite(part.kind, part.value)
    except ConstraintError as error:
        raise _at(part, error) from None
    return found


def _checked(
    text: str, parts: list[GrammarPart], others: list[dict[str, Any]], vocab_size: int
) -> list[dict[str, Any]]:
    """A grammar in Lark's notation with its parts and the other grammars to which it refers.

    Lenient parts are without what cannot be enforced.
    """
    patterns = [part for part in parts if part.kind == PATTERN]
    lines = [text, *(f"{part.name}: {search(part.value)}" for part in patterns)]
    found = [{**_of_part(part), "name": part.name} for part in parts if part.kind != PATTERN]
    grammars = [{"lark_grammar": "\n".join(lines)}, *found, *others]
    whole = _sized(*grammars)
    try:
        check_grammar("grammar", "", whole, vocab_size)
    except ConstraintError:
        kept = [_enforceable(part, vocab_size) for part in parts]
        if kept == parts:
            raise
        return _checked(text, kept, others, vocab_size)
    return grammars


def _enforceable(part: GrammarPart, vocab_size: int) -> GrammarPart:
    """The part if it can be compiled by itself, or what can be enforced of a lenient one.

    Raises:
        ConstraintError: it is invalid; with its place.
    """
    try:
        _check_part(part, vocab_size)
    except ConstraintError as error:
        kept = enforceable(part) if part.is_lenient else part
        if kept == part:
            raise _at(part, error) from None
        return _enforceable(kept, vocab_size)
    return part


def _check_part(part: GrammarPart, vocab_size: int) -> None:
    """Raises ConstraintError if the part is invalid by itself."""
    if part.kind == PATTERN:
        check_text_pattern(part.value)
    else:
        text = canonical_grammar(part.kind, part.value, part.options)
        check_grammar(part.kind, part.value, text, vocab_size)


def _at(part: GrammarPart, error: ConstraintError) -> ConstraintError:
    separator = "" if str(error).startswith("/") else ": "
    return ConstraintError(f"{part.place}{separator}{error}", param_of(part.place))


def _sized(*grammars: dict[str, Any]) -> str:
    text = canonical_text(*grammars)
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise ConstraintError(f"it is larger than {MAX_GRAMMAR_BYTES} bytes")
    return text


if __name__ == "__main__":
    os.nice(NICENESS)
    serve_json(_answer, max_memory_bytes=MAX_MEMORY_BYTES, cpu_seconds=lambda request: CPU_SECONDS)
