"""Rules for the arguments of a call that a model writes between tags, most of them as plain text.

The reader of `typed_values` turns a text into the first type of its schema that it fits. So a
string is written as plain text, and a value of any other type as JSON.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from taco_gateway.text.grammar.answer_rules import CallableTool, Enforcement
from taco_gateway.text.grammar.lark_builder import (
    SPACES,
    LarkBuilder,
    choice,
    quoted,
    sequence,
)
from taco_gateway.text.grammar.object_schema import (
    ANNOTATIONS,
    NOT_WRITABLE,
    OUTSIDE,
    Property,
    is_open_object,
    properties,
)
from taco_gateway.text.grammar.schema_numbers import invalid_number
from taco_gateway.text.response.formats import TaggedCall
from taco_gateway.text.response.local_refs import resolved
from taco_gateway.text.response.typed_values import JSON_TYPES, value_types

_TEXT = r"/(?s:.*)/"
_KEY = r"/[A-Za-z0-9_.-]{1,64}/"
_STRING_KEYWORDS = frozenset({"const", "enum", "maxLength", "minLength", "pattern", "type"})
_NO_VALUE = "no valid value of the property can be written in the model's format of calls"
_UNIONS = ("anyOf", "oneOf", "allOf")


def tagged_arguments(lark: LarkBuilder, form: TaggedCall, tool: CallableTool) -> str:
    """An expression for the arguments of a call, up to its end.

    Raises:
        ConstraintError: the format cannot write the arguments that the schema demands.
    """
    return _Arguments(lark, form, tool).expression()


class _Arguments:
    def __init__(self, lark: LarkBuilder, form: TaggedCall, tool: CallableTool) -> None:
        self._lark = lark
        self._form = form
        self._tool = tool
        self._is_lenient = tool.enforcement is not Enforcement.STRICT
        self._spaces = f"{lark.terminal(SPACES)}?"
        # Which the reader removes.
        self._margin = "" if form.trims_values or form.keeps_spaces else "\n"
        is_plain = all(isinstance(piece, str) for piece in lark.pieces(form.value_closes))
        self._plain_end = f"{self._margin}{form.value_closes}" if is_plain else ""
        self._end = lark.literal(f"{self._margin}{form.value_closes}")

    def expression(self) -> str:
        named = list(properties(self._tool))
        is_open = self._is_lenient and is_open_object(self._tool)
        if self._tool.enforcement is Enforcement.NONE or (is_open and not named):
            key = self._lark.terminal(_KEY)
            literal = self._lark.literal
            opening = f"{literal(self._form.key_opens)} {key} {literal(self._opening_end)}"
            return f"({opening} {self._text({}, '')} {self._spaces})*"
        return sequence(self._argument(part) for part in named)

    @property
    def _opening_end(self) -> str:
        return f"{self._form.key_closes}{self._form.value_opens}{self._margin}"

    def _argument(self, part: Property) -> str:
        form = self._form
        is_writable = form.key_closes not in part.name and part.name == part.name.strip()
        values = list(self._values(part)) if is_writable else []
        if not values:
            if part.is_required:
                problem = _NO_VALUE if is_writable else f"the property {NOT_WRITABLE}"
                raise self._tool.error(problem, _path(part))
            return ""
        literal = self._lark.literal
        opening = f"{literal(form.key_opens)} {quoted(part.name)} {literal(self._opening_end)}"
        argument = self._lark.rule(f"{opening} {choice(values)} {self._spaces}")
        return argument if part.is_required else f"{argument}?"

    def _values(self, part: Property) -> Iterator[str]:
        root = self._tool.schema
        types = value_types(root, part.name)
        if self._is_lenient:  # the reader leaves a value of an unknown type as it is: a string
            types = tuple(name if name in JSON_TYPES else "string" for name in types)
        others = list(dict.fromkeys(name for name in types if name != "string"))
        if others:
            document = part.document
            if "string" in types:
                own = {**document}
                shared = {"$defs": own.pop("$defs")} if "$defs" in own else {}
                document = {"allOf": [own], "type": others, **shared}
            place = f"{self._tool.place}{_path(part)}"
            value = self._lark.part("json", document, place, is_lenient=self._is_lenient)
            yield f"{value} {self._end}"
        if "string" in types or not others:
            for described in self._strings(part):
                if (found := invalid_number(described)) is not None:  # behind a reference
                    keyword, problem = found
                    raise self._tool.error(f"keyword {keyword!r}: {problem}", _path(part))
                if not self._is_lenient:
                    self._check_keywords(described, part)
                if (text := self._string(described, _path(part))) is not None:
                    yield text

    def _strings(self, part: Property) -> Iterator[Mapping[str, Any]]:
        """The parts of a property's schema that may describe strings, with their own keywords."""
        pending, seen_ids = [part.schema], set[int]()  # a union may contain itself
        for schema in pending:
            described = resolved(self._tool.schema, schema)
            if described is None and not self._is_lenient:
                raise self._tool.error(f"keyword '$ref': {OUTSIDE}", _path(part))
            if described is None or described is True:
                yield {}
            if not isinstance(described, dict) or id(described) in seen_ids:
                continue
            seen_ids.add(id(described))
            unions = [described[name] for name in _UNIONS if isinstance(described.get(name), list)]
            pending += chain(*unions)
            if not unions and self._may_be_string(described):
                yield described

    def _may_be_string(self, described: Mapping[str, Any]) -> bool:
        kinds = described.get("type", "string")
        listed = kinds if isinstance(kinds, list) else [kinds]
        return any(
            name == "string" or (self._is_lenient and name not in JSON_TYPES) for name in listed
        )

    def _string(self, described: Mapping[str, Any], path: str) -> str | None:
        """An expression for the strings of a schema and their end; None: no string is valid."""
        chosen = described.get("enum")
        if "const" in described:
            chosen = [described["const"]]
        if isinstance(chosen, list):
            texts = [text for text in chosen if isinstance(text, str)]
            written = [f"{quoted(text)} {self._end}" for text in texts if self._fits(text)]
            return choice(written) if written else None
        if described.get("minLength", 0) > described.get("maxLength", math.inf):
            return None
        return self._text(described, path)

    def _check_keywords(self, described: Mapping[str, Any], part: Property) -> None:
        for keyword in described:
            if keyword not in _STRING_KEYWORDS | ANNOTATIONS:
                raise self._tool.error(f"keyword {keyword!r} {NOT_WRITABLE}", _path(part))

    def _fits(self, text: str) -> bool:
        if self._form.trims_values and text != text.strip():
            return False
        return self._form.value_closes not in text

    def _text(self, described: Mapping[str, Any], path: str) -> str:
        lark = self._lark
        text = lark.terminal(_TEXT)
        parts = [text, f"~({text} {quoted(self._form.value_closes)} {text})"]
        least, most = int(described.get("minLength", 0)), described.get("maxLength")
        if least or most is not None:
            parts.append(f"/(?s:.{{{least},{'' if most is None else int(most)}}})/")
        pattern = described.get("pattern")
        if isinstance(pattern, str):
            place = f"{self._tool.place}{path}"
            parts.append(lark.pattern(pattern, place, is_lenient=self._is_lenient))
        if self._form.trims_values:
            parts.append(r"/(\S((?s:.*)\S)?)?/")
        kept = lark.terminal(" & ".join(parts))
        if not self._plain_end:  # a token ends the value
            return f"{kept} {lark.literal(self._form.value_closes)}"
        return lark.rule(f"{kept} {quoted(self._plain_end)}", "[lazy]")


def _path(part: Property) -> str:
    return f"/properties/{part.name}"
