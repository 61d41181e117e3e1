"""Child process that turns constraints into grammars; `grammar_pool` starts it.

A client's schema or regular expression may take any time and memory to compile; a process can be
stopped. A request is {"kind", "value", "options"} or {"tag"} for a constraint on the text,
{"answer"} for the grammar of an answer's parts, or both, with {"vocab_size"}. A tag and an answer
are {"text", "parts"}, as `LarkGrammar` has them. The reply is {"text"}, or {"error"} with the
{"param"} that is wrong.
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
from taco_gateway.text.grammar.lark_builder import CONTENT, GrammarPart
from taco_gateway.text.grammar.validation import check_finite, check_grammar
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
    text = ""
    if (kind := request.get("kind")) is not None:
        content = [grammar_object(kind, request["value"], request["options"])]
        text = _sized(*content)
        check_grammar(kind, request["value"], text)
    elif (tag := request.get("tag")) is not None:
        content, parts = _with_parts(tag)
        text = _checked(content, parts, request["vocab_size"])
    if (answer := request.get("answer")) is None:
        return text
    (whole, *others), parts = _with_parts(answer)
    if content:
        others += [{**content[0], "name": CONTENT}, *content[1:]]
    return _checked([whole, *others], parts, request["vocab_size"])


def _with_parts(grammar: dict[str, Any]) -> tuple[list[dict[str, Any]], list[GrammarPart]]:
    """A grammar in Lark's notation and those of its parts, as llguidance reads them."""
    parts = [GrammarPart(**part) for part in grammar["parts"]]
    found = [{**_of_part(part), "name": part.name} for part in parts]
    return [{"lark_grammar": grammar["text"]}, *found], parts


def _of_part(part: GrammarPart) -> dict[str, Any]:
    """Raises ConstraintError with the part's place if it is in no known form or has no end."""
    try:
        found = grammar_object(part.kind, part.value, part.options)
        check_finite(part.kind, part.value)
    except ConstraintError as error:
        raise _at(part, error) from None
    return found


def _checked(grammars: list[dict[str, Any]], parts: list[GrammarPart], vocab_size: int) -> str:
    text = _sized(*grammars)
    try:
        check_grammar("grammar", "", text, vocab_size)
    except ConstraintError:
        for part in parts:
            _check_part(part)
        raise
    return text


def _check_part(part: GrammarPart) -> None:
    """Raises ConstraintError with the part's place if the part is invalid by itself."""
    try:
        text = canonical_grammar(part.kind, part.value, part.options)
        check_grammar(part.kind, part.value, text)
    except ConstraintError as error:
        raise _at(part, error) from None


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
