"""Turns a constraint into the canonical grammar: one text in llguidance's form.

The text is a JSON object with one grammar, so that a client's text is never read as anything else.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark, is_lark_syntax

from taco_gateway.text.grammar.endless_grammars import EndlessGrammarError, without_endless_rules
from taco_gateway.text.grammar.schema_numbers import (
    close_whole_bounds,
    invalid_number,
    normalize_numbers,
    unenforced_numbers,
)
from taco_gateway.text.response.local_refs import part_at, pointer_parts

# Whitespace between tokens of JSON. Without a limit a model may write it until its length ends.
_MAX_SPACES = 20
# It would change how a schema is read, up to ignoring what cannot be enforced.
_OPTIONS = "x-guidance"
# Keywords whose values are schemas, lists of schemas, or schemas by name.
_SCHEMAS = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)

Path = tuple[str, ...]


class ConstraintError(ValueError):
    """A constraint is invalid. The message is for clients.

    Attributes:
        param: the field of the request; None: the one with the constraint on the content.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def spaces_pattern(most: int = _MAX_SPACES) -> str:
    """The white space between tokens of JSON: at most `most` characters."""
    return rf"[\x20\x0A\x0D\x09]{{0,{most}}}"


def canonical_text(*grammars: Mapping[str, Any]) -> str:
    """The canonical form of a grammar and of those to which it refers by name.

    Raises:
        ConstraintError: a schema has a number that is not finite.
    """
    try:
        return json.dumps(
            {"grammars": grammars}, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
    except ValueError:
        raise ConstraintError("NaN and Infinity are not JSON") from None


def without_forced_tokens(text: str) -> str:
    """A canonical grammar of the same texts, whose tokens are the model's choice everywhere.

    Where a grammar leaves one text, llguidance demands the tokens that the tokenizer makes of it.
    They are wrong if that text spells an added token, which as a token is another text.
    """
    first, *others = json.loads(text)["grammars"]
    start = '%llguidance {"no_forcing": true}\nstart: @whole'
    return canonical_text({"lark_grammar": start}, {**first, "name": "whole"}, *others)


def canonical_grammar(kind: str, value: Any, options: Mapping[str, Any]) -> str:
    """The canonical form of a constraint; see `grammar_object`."""
    return canonical_text(grammar_object(kind, value, options))


def grammar_object(kind: str, value: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The grammar of a constraint as llguidance reads it; it has not been validated.

    Args:
        kind: name of the field of `StructuredOutputsParams` that is set.
        value: its value; a schema is an object, true, false, or a JSON text.
        options: the other fields; `lenient`: what cannot be enforced is ignored.

    Raises:
        ConstraintError: the schema is no JSON, or has a number that is invalid or cannot be
            enforced, or the grammar is in no known notation or matches no finite text.
    """
    match kind:
        case "json":
            schema = parse_schema(value)
            check_numbers(schema)
            return {"json_schema": _with_options(schema, options)}
        case "json_object":
            return {"json_schema": _with_options({"type": "object"}, options)}
        case "regex":
            if not value:
                return {"lark_grammar": 'start: ""'}
            found: dict[str, Any] = json.loads(LLMatcher.grammar_from_regex(value))["grammars"][0]
            return found
        case "choice":
            texts = map(_literal, dict.fromkeys(value))
            return {"lark_grammar": f"start: {' | '.join(texts)}"}
    if _OPTIONS in value:  # in a schema inside the grammar
        raise ConstraintError(f"a grammar may not contain {_OPTIONS}")
    return {"lark_grammar": _lark(value)}


def _lark(value: str) -> str:
    """A grammar in Lark's notation.

    Raises:
        ConstraintError: it is in no known notation, or no finite text matches it.
    """
    try:
        converted = any_to_lark(value)
    except Exception as error:  # the converter raises many types
        raise ConstraintError(
            f"the grammar is in neither Lark's nor GBNF notation: {error}"
        ) from None
    try:
        return without_endless_rules(converted)
    except EndlessGrammarError as error:
        name = str(error)
        if name == "start" and not is_lark_syntax(value):
            name = "root"  # the converter renames it
        raise ConstraintError(f"no finite text matches it: rule {name!r} never ends") from None


def parse_schema(value: Any) -> dict[str, Any] | bool:
    """The schema as an object; a text is parsed.

    Raises:
        ConstraintError: it is no JSON, or neither an object nor true nor false.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"the schema is not valid JSON: {error}") from None
    if not isinstance(value, dict | bool):
        raise ConstraintError("a JSON schema is an object, true or false")
    return value


def check_numbers(schema: Any) -> None:
    """Raises:
    ConstraintError: a keyword has a number that the specification forbids; with the path.
    """
    for path, part in subschemas(schema):
        if (found := invalid_number(part)) is not None:
            raise ConstraintError(at_keyword(path, *found))


def at_keyword(path: Path, keyword: str, problem: str) -> str:
    """The message of an error at a keyword of a schema, with the JSON pointer (RFC 6901) to it."""
    parts = (part.replace("~", "~0").replace("/", "~1") for part in path)
    pointer = "".join(f"/{part}" for part in parts) or "/"
    return f"{pointer}: keyword {keyword!r}: {problem}"


def subschemas(schema: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every object that is a schema, with the path to it: parents first, and at the end those to
    which only references lead."""
    seen: set[int] = set()
    found: list[tuple[Path, Any]] = [((), schema)]
    for path, root in found:
        if id(root) in seen:
            continue
        for place, part in _nested(root, path):
            if id(part) in seen:
                continue
            seen.add(id(part))
            yield place, part
            if (parts := pointer_parts(part.get("$ref"))) is not None:
                found.append((parts, part_at(schema, parts)))


def _nested(schema: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A schema and those that its keywords hold, with the paths to them."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword, value in schema.items():
        if keyword in _SCHEMA_MAPS and isinstance(value, dict):
            for name, part in value.items():
                yield from _nested(part, (*path, keyword, name))
        elif keyword in _SCHEMA_LISTS and isinstance(value, list):
            for index, part in enumerate(value):
                yield from _nested(part, (*path, keyword, str(index)))
        elif keyword in _SCHEMAS or keyword in _SCHEMA_LISTS:
            yield from _nested(value, (*path, keyword))


def _with_options(schema: dict[str, Any] | bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the options of this request in place of the client's own.

    Raises:
        ConstraintError: a number cannot be enforced, and the options are not lenient.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    schema = copy.deepcopy(schema)
    parts = list(subschemas(schema))
    for path, part in parts:
        part.pop(_OPTIONS, None)
        if part.get("uniqueItems") is False:  # it constrains nothing
            del part["uniqueItems"]
        normalize_numbers(part)
        for keyword, problem in list(unenforced_numbers(part)):
            if not options.get("lenient"):
                raise ConstraintError(at_keyword(path, keyword, problem))
            del part[keyword]
        if options.get("disable_additional_properties") and _is_open_object(part):
            part["additionalProperties"] = False
    close_whole_bounds([part for _, part in parts])
    own: dict[str, Any] = {"whitespace_flexible": not options.get("disable_any_whitespace")}
    if own["whitespace_flexible"]:
        own["whitespace_pattern"] = options.get("whitespace_pattern") or spaces_pattern()
    if options.get("lenient"):
        own |= {"lenient": True, "coerce_one_of": True}
    return {**schema, _OPTIONS: own}


def _is_open_object(schema: Mapping[str, Any]) -> bool:
    closing = ("additionalProperties", "unevaluatedProperties", "patternProperties")
    return "properties" in schema and not any(name in schema for name in closing)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
