"""Descriptions from a checkpoint's own response template.

A response template is Hugging Face's description of a model's answers, version 1:
`response_template` in tokenizer_config.json, which `parse_response` of transformers reads. What no
description can say is an error, never a guess.
"""

from collections.abc import Collection, Mapping
from itertools import permutations
from typing import Any

from taco_gateway.text.response.formats import (
    JsonCall,
    NamedCall,
    ReasoningFormat,
    TaggedCall,
    ToolFormat,
)
from taco_gateway.text.response.template_patterns import (
    Blanks,
    Group,
    Sequence,
    Start,
    TemplateError,
    sequences,
)


class ContentMarkerError(TemplateError):
    """The content has markers that only a class of a plug-in can remove."""


_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_TEMPLATE_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats"),
    *("join", "optional", "transform", "transform_each"),
}
_FUNCTION = "transform.function"


def tool_format(template: Mapping[str, Any], hidden: Collection[str] = ()) -> ToolFormat:
    """The description of the tool calls.

    Args:
        hidden: special tokens, which the text of an answer does not show.

    Raises:
        TemplateError: the template has none, is invalid, or says what a description cannot say.
    """
    field = _fields(template, hidden).get("tool_calls")
    if field is None:
        raise TemplateError("it describes no tool_calls")
    match field.content:
        case "json":
            return _json_format(field)
        case "xml-inline":
            return _tagged_format(field)
    raise field.error(f"the content {field.content!r} cannot be streamed as calls")


def reasoning_format(template: Mapping[str, Any], hidden: Collection[str] = ()) -> ReasoningFormat:
    """The description of the reasoning.

    Args:
        hidden: special tokens, which the text of an answer does not show.

    Raises:
        TemplateError: the template has none, is invalid, or says what a description cannot say.
    """
    fields = _fields(template, hidden)
    field = next((fields[name] for name in _REASONING_FIELDS if name in fields), None)
    if field is None:
        raise TemplateError(f"it describes no reasoning: no field {', '.join(_REASONING_FIELDS)}")
    if field.content != "text" or field.get("transform") is not None:
        raise field.error("it is not text")
    if field.get("join") is not None:
        raise field.error("reasoning in several parts is not supported")
    opens, closes = field.sequences("open"), field.sequences("close")
    if not closes:
        raise field.error("it has no close")
    starts = [sequence for sequence in opens if sequence in ((), (Start(),))]
    return ReasoningFormat(
        opens=field.markers([sequence for sequence in opens if sequence not in starts]),
        closes=field.markers(closes),
        starts_inside=bool(starts) or not opens,
    )


class _Field:
    """A field of a template."""

    def __init__(self, name: str, spec: Mapping[str, Any]) -> None:
        self._name = name
        self._spec = spec
        self.content = self.get("content", "text")
        self.arguments = self.get("content_args", {})
        if not isinstance(spec.get("content_args", {}), dict):
            raise self.error("content_args is not an object")

    def error(self, reason: str) -> TemplateError:
        return TemplateError(f"fields.{self._name}: {reason}")

    def get(self, key: str, default: Any = None) -> Any:
        return self._spec.get(key, default)

    def sequences(self, anchor: str) -> list[Sequence]:
        """The texts and patterns of `open` or `close`; empty: the field has neither."""
        texts, pattern = self.get(anchor), self.get(f"{anchor}_pattern")
        if texts is not None and pattern is not None:
            raise self.error(f"{anchor} and {anchor}_pattern exclude each other")
        if pattern is not None:
            if not isinstance(pattern, str):
                raise self.error(f"{anchor}_pattern is not a string")
            try:
                return sequences(pattern)
            except TemplateError as error:
                raise self.error(f"{anchor}_pattern: {error}") from None
        texts = [texts] if isinstance(texts, str) else texts or []
        if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
            raise self.error(f"{anchor} is neither a text nor a list of texts")
        return [(text,) for text in texts]

    def markers(self, found: list[Sequence]) -> tuple[str, ...]:
        """Sequences that are one fixed text each."""
        texts: list[str] = []
        for sequence in found:
            if len(sequence) != 1 or not isinstance(sequence[0], str):
                raise self.error("a marker is not one fixed text")
            texts.append(sequence[0])
        texts = sorted(dict.fromkeys(texts), key=len, reverse=True)
        if any(one.startswith(other) for one, other in permutations(texts, 2)):
            raise self.error("a marker begins with another one")
        return tuple(texts)

    def closes(self) -> tuple[str, ...]:
        """The texts that end a section of calls, which white space may precede."""
        return tuple(text.lstrip() or text for text in self.markers(self.sequences("close")))


def _fields(template: Mapping[str, Any], hidden: Collection[str]) -> dict[str, _Field]:
    if not isinstance(template, Mapping):
        raise TemplateError("it is not an object")
    if template.get("version", 1) != 1:
        raise TemplateError(f"version {template['version']!r} is unknown")
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise TemplateError("it has no fields")
    _check_keys("", template, _TEMPLATE_KEYS)
    read: dict[str, _Field] = {}
    for name, spec in fields.items():
        if not isinstance(spec, Mapping):
            raise TemplateError(f"fields.{name} is not an object")
        _check_keys(f"fields.{name}.", spec, _FIELD_KEYS)
        if name not in ("content", "tool_calls", *_REASONING_FIELDS):
            raise TemplateError(f"fields.{name}: an answer has no such part")
        read[name] = _Field(name, spec)
    if "content" in read:
        _check_content(read["content"], hidden)
    return read


def _check_content(field: _Field, hidden: Collection[str]) -> None:
    """Raises TemplateError if markers of the content would be seen in it."""
    opens = field.sequences("open")
    shown = [marker for marker in opens if len(marker) != 1 or marker[0] not in hidden]
    if opens and shown:
        raise ContentMarkerError(
            "fields.content: what opens the content is no special token, so it would be seen"
        )


def _check_keys(place: str, given: Mapping[str, Any], known: set[str]) -> None:
    for key in given:
        if key not in known:
            raise TemplateError(f"{place}{key} is unknown")


def _json_format(field: _Field) -> ToolFormat:
    if set(field.arguments) - {"allow_non_json"}:
        raise field.error("content_args of JSON that is no JSON are not supported")
    name, arguments = _call_places(field)
    opens, is_list = field.sequences("open"), bool(field.get("transform_each"))
    if arguments == "content":
        if is_list:
            raise field.error(f"{_FUNCTION}.arguments: a list of calls has no content")
        return _named_format(field, name)
    name, arguments = (_key(field, place, is_list=is_list) for place in (name, arguments))
    return ToolFormat(
        opens=_required(field, field.markers(opens)),
        closes=field.closes(),
        has_list=is_list,
        separator="," if is_list else "",
        json_call=JsonCall(name_key=name, argument_keys=(arguments,)),
    )


def _named_format(field: _Field, name: str) -> ToolFormat:
    """Calls whose opening pattern has the name, before JSON with the arguments."""
    (marker, *before), behind = _around_name(field, name)
    return ToolFormat(
        opens=(marker,),
        closes=field.closes(),
        named_call=NamedCall(before="".join(before), name_ends=(behind or "{",)),
    )


def _around_name(field: _Field, name: str) -> tuple[list[str], str]:
    """One or two texts before the function's name, and the text behind it, which may be empty."""
    found = field.sequences("open")
    elements = [element for element in found[0] if element != Blanks()] if len(found) == 1 else []
    texts = [element for element in elements if isinstance(element, str)]
    match elements:
        case [str(), Group(group), *_] if group == name and elements[2:] == texts[1:2]:
            return texts[:1], "".join(texts[1:])
        case [str(), str(), Group(group), *_] if group == name and elements[3:] == texts[2:3]:
            return texts[:2], "".join(texts[2:])
    raise field.error("open is not a marker and the function's name")


def _tagged_format(field: _Field) -> ToolFormat:
    name, arguments = _call_places(field)
    if arguments != "content" or field.get("transform_each"):
        raise field.error(f"{_FUNCTION}.arguments is not the content")
    (marker, *before), name_closes = _around_name(field, name)
    closing = field.sequences("close")
    ends = [text for text in closing[0] if text != Blanks()] if len(closing) == 1 else []
    if len(ends) not in (1, 2) or not all(isinstance(text, str) for text in ends):
        raise field.error("close is not one or two fixed texts")
    call_closes, *section_closes = map(str, ends)
    return ToolFormat(
        opens=(marker,),
        closes=tuple(section_closes),
        tagged_call=_tagged_call(field, "".join(before), name_closes, call_closes),
    )


def _tagged_call(field: _Field, name_opens: str, name_closes: str, call_closes: str) -> TaggedCall:
    pattern = field.arguments.get("tag_pattern")
    for key in field.arguments:
        if key not in ("tag_pattern", "value_parser"):
            raise field.error(f"content_args.{key} is not supported")
    found = sequences(pattern) if isinstance(pattern, str) else []
    whole = found[0] if len(found) == 1 else ()
    match [element for element in whole if element != Blanks()]:
        case [str(opens), Group("key"), str(closes), Group("value"), str(ends)]:
            value_opens = ""
        case [str(opens), Group("key"), str(closes), str(value_opens), Group("value"), str(ends)]:
            pass
        case _:
            raise field.error("content_args.tag_pattern is not text, key, text, value, text")
    at = whole.index(Group("value"))
    # transformers trims what a parser of values reads.
    trims_values = field.arguments.get("value_parser") is not None or Blanks() in (
        whole[at - 1],
        whole[at + 1],
    )
    return TaggedCall(
        name_opens=name_opens,
        name_closes=name_closes,
        key_opens=opens,
        key_closes=closes,
        value_opens=value_opens,
        value_closes=ends,
        call_closes=call_closes,
        trims_values=trims_values,
        keeps_spaces=not trims_values,
        guesses_types=_values_are_json(field),
    )


def _values_are_json(field: _Field) -> bool:
    match field.arguments.get("value_parser"):
        case None | {"name": "text"}:
            return False
        case {"name": "json", "args": {"allow_non_json": True}}:
            return True
    raise field.error("content_args.value_parser must be json with allow_non_json")


def _call_places(field: _Field) -> tuple[str, str]:
    """Where the name and the arguments of a call are: `content`, a key of it, or a group."""
    transform = field.get("transform")
    function = transform.get("function", transform) if isinstance(transform, dict) else None
    if function == "{content}" and not field.get("transform_each"):
        return "content.name", "content.arguments"
    places = []
    for key in ("name", "arguments"):
        place = function.get(key) if isinstance(function, dict) else None
        if not isinstance(place, str) or not (place.startswith("{") and place.endswith("}")):
            raise field.error(f"{_FUNCTION}.{key} is not one placeholder")
        places.append(place[1:-1])
    return places[0], places[1]


def _key(field: _Field, place: str, *, is_list: bool) -> str:
    key = place if is_list else place.removeprefix("content.")
    if not key or "." in key or (not is_list and key == place):
        raise field.error(f"{_FUNCTION}: {place!r} is not a key of the call")
    return key


def _required(field: _Field, markers: tuple[str, ...]) -> tuple[str, ...]:
    if not markers:
        raise field.error("it has no open")
    return markers
