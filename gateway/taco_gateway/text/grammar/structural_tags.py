"""Makes the grammars of structural tags: free text in which triggers begin constrained parts.

Both forms are read: `structures` with `triggers`, and the newer `format`, an object with a `type`
(xgrammar's documentation, "Structural Tag").
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taco_gateway.text.grammar.answer_rules import CallableTool, Enforcement
from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.grammar.free_text import Branch, FreeText
from taco_gateway.text.grammar.lark_builder import LarkBuilder, LarkGrammar, choice, sequence
from taco_gateway.text.grammar.tagged_values import tagged_arguments
from taco_gateway.text.response.built_in import TOOL_FORMATS

KIND = "structural_tag"
_MAX_FORMATS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTokens:
    """The tokens that matter in a structural tag.

    Attributes:
        without_text: ids, by spelling, of the tokens that no text of a grammar contains.
        end_ids: tokens that end the answer.
        vocab_size: number of token ids.
    """

    without_text: Mapping[str, int] = field(default_factory=dict)
    end_ids: frozenset[int] = frozenset()
    vocab_size: int = 0


def structural_tag_grammar(value: Any, tokens: TagTokens) -> LarkGrammar:
    """The grammar of a structural tag, an object or its JSON text.

    Raises:
        ConstraintError: it is invalid, or has a part that is not supported. The message names the
            path.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"it is not valid JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ConstraintError("it must be an object")
    return _Tags(value, tokens).grammar()


class _Tags:
    def __init__(self, value: Mapping[str, Any], tokens: TagTokens) -> None:
        self._value = value
        whole = json.dumps(value, ensure_ascii=False)
        used = {text: number for text, number in tokens.without_text.items() if text in whole}
        self._lark = LarkBuilder(used, "tag")
        self._tokens = tokens
        self._num_formats = 0
        self._makers: Mapping[str, Callable[[Mapping[str, Any], str, bool], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "qwen_xml_parameter": self._qwen_xml,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def grammar(self) -> LarkGrammar:
        value = self._value
        if "format" in value:
            return self._lark.grammar(self._expression(value["format"], f"{KIND}.format", True))
        structures = _listed(value, "structures", KIND)
        tags = [
            {
                "begin": structure.get("begin"),
                "content": {"type": "json_schema", "json_schema": structure.get("schema", {})},
                "end": structure.get("end"),
            }
            for structure in structures
            if isinstance(structure, Mapping)
        ]
        if len(tags) != len(structures):
            raise ConstraintError(f"{KIND}.structures: each of them must be an object")
        form = {"triggers": value.get("triggers"), "tags": tags}
        return self._lark.grammar(self._triggered_tags(form, KIND, True, "structures"))

    def _expression(self, form: Any, path: str, is_last: bool) -> str:
        """An expression for a format.

        Args:
            is_last: the answer ends with it.
        """
        self._num_formats += 1
        if self._num_formats > _MAX_FORMATS:
            raise ConstraintError(f"{KIND} has more than {_MAX_FORMATS} formats")
        kind = form.get("type") if isinstance(form, Mapping) else None
        maker = self._makers.get(kind) if isinstance(kind, str) else None
        if maker is None:
            raise ConstraintError(f"{path}.type must be one of {', '.join(self._makers)}")
        return maker(form, path, is_last)

    def _const_string(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        return self._lark.literal(_text(form, "value", path)) or '""'

    def _json_schema(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        style = form.get("style", "json")
        if style == "qwen_xml":
            return self._qwen_xml(form, path, is_last)
        if style != "json":
            raise ConstraintError(f"{path}.style must be json or qwen_xml")
        schema = form.get("json_schema", {})
        if not isinstance(schema, Mapping | bool):
            raise ConstraintError(f"{path}.json_schema must be a JSON schema")
        return self._lark.part("json", schema, f"{path}.json_schema")

    def _qwen_xml(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        tags = TOOL_FORMATS["qwen3_coder"].tagged_call
        assert tags is not None
        place = f"{path}.json_schema"
        tool = CallableTool("", form.get("json_schema", {}), place, Enforcement.STRICT)
        return tagged_arguments(self._lark, tags, tool) or '""'

    def _regex(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        return self._lark.part("regex", _text(form, "pattern", path), f"{path}.pattern")

    def _grammar(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        return self._lark.part("grammar", _text(form, "grammar", path), f"{path}.grammar")

    def _any_text(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        _check_no_excludes(form, path)
        if not is_last:
            raise ConstraintError(f"{path}: any_text may only be the last part, or a tag's content")
        return self._free_text([]).until([], may_end=True)

    def _sequence(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        elements = _listed(form, "elements", path)
        last = len(elements) - 1
        return sequence(
            self._expression(element, f"{path}.elements[{index}]", is_last and index == last)
            for index, element in enumerate(elements)
        )

    def _or(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        elements = _listed(form, "elements", path)
        return choice(
            self._expression(element, f"{path}.elements[{index}]", is_last)
            for index, element in enumerate(elements)
        )

    def _tag(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        begin = self._lark.literal(_text(form, "begin", path))
        return self._lark.rule(sequence((begin, self._content_and_end(form, path))))

    def _content_and_end(self, form: Mapping[str, Any], path: str) -> str:
        """The rest of a tag behind its beginning."""
        given = form.get("end")
        listed = given if isinstance(given, list) else [given]
        ends = [end for end in listed if isinstance(end, str)]
        if not ends or len(ends) != len(listed):
            raise ConstraintError(f"{path}.end must be a string or a list of strings")
        content = form.get("content")
        if isinstance(content, Mapping) and content.get("type") == "any_text":
            _check_no_excludes(content, f"{path}.content")
            if not all(ends):
                raise ConstraintError(f"{path}.end: any_text needs an end that is not empty")
            text = self._free_text(ends)
            return text.until([Branch(end, "") for end in ends], may_end=False)
        expression = self._expression(content, f"{path}.content", False)
        return sequence((expression, choice(self._lark.literal(end) for end in ends)))

    def _triggered_tags(
        self, form: Mapping[str, Any], path: str, is_last: bool, name: str = "tags"
    ) -> str:
        _check_no_excludes(form, path)
        if not is_last:
            raise ConstraintError(f"{path}: triggered_tags may only be the last part")
        triggers = _listed(form, "triggers", path)
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise ConstraintError(f"{path}.triggers must be strings that are not empty")
        rests: dict[str, list[str]] = {}
        for index, tag in enumerate(_listed(form, "tags", path)):
            place = f"{path}.{name}[{index}]"
            marker, rest = self._triggered(_text(tag, "begin", place), triggers, place)
            content = self._content_and_end(tag, place)
            rests.setdefault(marker, []).append(sequence((self._lark.literal(rest), content)))
        branches = [Branch(m, self._lark.rule(choice(parts))) for m, parts in rests.items()]
        text = self._free_text([branch.marker for branch in branches])
        at_least_one = _switch(form, "at_least_one", path)
        if _switch(form, "stop_after_first", path):
            return text.until(branches, may_end=not at_least_one)
        first = text.until(branches, may_end=False) if at_least_one else ""
        return sequence((first, text.around(branches)))

    def _triggered(self, begin: str, triggers: Sequence[str], path: str) -> tuple[str, str]:
        """What begins a tag in free text, and the rest of its beginning."""
        found = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if found is None:
            raise ConstraintError(f"{path}.begin begins with none of the triggers")
        first = self._lark.pieces(begin)[0]
        if isinstance(first, int) and (token := self._lark.spelled(first)).startswith(found):
            found = token  # the trigger is a part of this token
        return found, begin.removeprefix(found)

    def _tags_with_separator(self, form: Mapping[str, Any], path: str, is_last: bool) -> str:
        tags = [
            self._tag(tag, f"{path}.tags[{index}]", False)
            for index, tag in enumerate(_listed(form, "tags", path))
        ]
        tag = self._lark.rule(choice(tags))
        separator = self._lark.literal(_text(form, "separator", path))
        tags_text = tag
        if not _switch(form, "stop_after_first", path):
            tags_text = f"{tag} ({sequence((separator, tag))})*"
        return tags_text if _switch(form, "at_least_one", path) else f"({tags_text})?"

    def _free_text(self, markers: Sequence[str]) -> FreeText:
        return FreeText(
            self._lark, markers, self._tokens.without_text.values(), self._tokens.end_ids
        )


def _listed(form: Mapping[str, Any], name: str, path: str) -> list[Any]:
    found = form.get(name)
    if not isinstance(found, list) or not found:
        raise ConstraintError(f"{path}.{name} must be a list that is not empty")
    return found


def _text(form: Any, name: str, path: str) -> str:
    found = form.get(name) if isinstance(form, Mapping) else None
    if not isinstance(found, str):
        raise ConstraintError(f"{path}.{name} must be a string")
    return found


def _switch(form: Mapping[str, Any], name: str, path: str) -> bool:
    found = form.get(name, False)
    if not isinstance(found, bool):
        raise ConstraintError(f"{path}.{name} must be true or false")
    return found


def _check_no_excludes(form: Mapping[str, Any], path: str) -> None:
    if form.get("excludes"):
        raise ConstraintError(f"{path}.excludes is not supported")
