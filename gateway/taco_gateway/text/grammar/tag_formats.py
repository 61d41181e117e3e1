"""Expressions for the formats of structural tags."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taco_gateway.text.grammar.answer_rules import CallableTool, Enforcement
from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.grammar.free_text import MAX_CHARS, Branch, FreeText, Reading
from taco_gateway.text.grammar.lark_builder import LarkBuilder, choice, sequence, token_class
from taco_gateway.text.grammar.tag_fields import (
    TagTokens,
    bounds,
    limit,
    listed,
    optional_list,
    switch,
    text,
)
from taco_gateway.text.grammar.tagged_values import tagged_arguments
from taco_gateway.text.grammar.text_rests import END, OPEN, Rest, Rests
from taco_gateway.text.response.built_in import TOOL_FORMATS
from taco_gateway.text.response.formats import TaggedCall

_MAX_FORMATS = 1000
_MAX_SPACES = 1000
# The first character of a JSON value, by the type in its schema.
_FIRST_CHARS = {"object": "{", "array": "[", "string": '"'}
_STYLES: Mapping[str, TaggedCall | None] = {
    "qwen_xml": TOOL_FORMATS["qwen3_coder"].tagged_call,
    "minimax_xml": TaggedCall(
        name_opens="", name_closes="", call_closes="", trims_values=True,
        key_opens='<parameter name="', key_closes='">', value_closes="</parameter>",
    ),
    "glm_xml": TaggedCall(
        name_opens="", name_closes="", call_closes="", trims_values=True,
        key_opens="<arg_key>", key_closes="</arg_key><arg_value>", value_closes="</arg_value>",
    ),
}  # fmt: skip


class TagFormats:
    """Makes the expressions of one structural tag.

    Args:
        name: of the field, for errors.
    """

    def __init__(self, lark: LarkBuilder, tokens: TagTokens, name: str) -> None:
        self._lark = lark
        self._rests = Rests(lark, tokens)
        self._tokens = tokens
        self._name = name
        self._spellings = {token_id: spelling for spelling, token_id in tokens.without_text.items()}
        self._num_formats = 0
        self._tags_field = "tags"
        self._end_ids: list[int | None] = [None]  # the tokens that end the tags around a format
        self._makers: Mapping[str, Callable[[Mapping[str, Any], str, Rest], Rest]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "qwen_xml_parameter": self._qwen_xml_parameter,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "optional": self._optional,
            "star": self._star,
            "plus": self._plus,
            "repeat": self._repeat,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
            "dispatch": self._dispatch,
            "token": self._token,
            "exclude_token": self._exclude_token,
            "any_tokens": self._any_tokens,
            "token_triggered_tags": self._token_triggered_tags,
            "token_dispatch": self._token_dispatch,
        }

    def answer(self, form: Any, path: str, *, tags_field: str = "tags") -> str:
        """An expression for a whole answer.

        Args:
            tags_field: the field with the tags of `form`, for errors.

        Raises:
            ConstraintError: the format is invalid, or cannot be enforced.
        """
        self._tags_field = tags_field
        return self._rest(form, path, END).expression or '""'

    def _rest(self, form: Any, path: str, after: Rest) -> Rest:
        """The text of a format and of what follows it."""
        self._num_formats += 1
        if self._num_formats > _MAX_FORMATS:
            raise ConstraintError(f"{self._name} has more than {_MAX_FORMATS} formats")
        kind = form.get("type") if isinstance(form, Mapping) else None
        maker = self._makers.get(kind) if isinstance(kind, str) else None
        if maker is None:
            raise ConstraintError(f"{path}.type must be one of {', '.join(self._makers)}")
        return maker(form, path, after)

    def _const_string(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        return self._rests.begun(text(form, "value", path), after)

    def _json_schema(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        style = form.get("style", "json")
        if switch(form, "any_order", path):
            raise ConstraintError(f"{path}.any_order is not supported")
        if isinstance(style, str) and style in _STYLES:
            return self._xml(style, form, path, after)
        if style != "json":
            raise ConstraintError(f"{path}.style must be one of json, {', '.join(_STYLES)}")
        schema = form.get("json_schema", {})
        if not isinstance(schema, Mapping | bool):
            raise ConstraintError(f"{path}.json_schema must be a JSON schema")
        spaces = limit(form, "max_whitespace_cnt", path, _MAX_SPACES)
        part = self._lark.part("json", schema, f"{path}.json_schema", max_spaces=spaces)
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        first = _FIRST_CHARS.get(kind, "") if isinstance(kind, str) else ""
        return Rest(self._rests.named(part, after), first_chars=first)

    def _qwen_xml_parameter(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        return self._xml("qwen_xml", form, path, after)

    def _xml(self, style: str, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        tags, place = _STYLES[style], f"{path}.json_schema"
        assert tags is not None
        tool = CallableTool("", form.get("json_schema", {}), place, Enforcement.STRICT)
        arguments = tagged_arguments(self._lark, tags, tool)
        return Rest(self._rests.named(arguments, after)) if arguments else after

    def _regex(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        part = self._lark.part("regex", text(form, "pattern", path), f"{path}.pattern")
        return Rest(self._rests.named(part, after))

    def _grammar(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        part = self._lark.part("grammar", text(form, "grammar", path), f"{path}.grammar")
        return Rest(self._rests.named(part, after))

    def _any_text(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        excluded = self._excluded(form, path)
        most = limit(form, "max_chars", path, MAX_CHARS)
        max_tokens = limit(form, "max_tokens", path)
        if after.first_chars and max_tokens is None:
            return self._rests.text_before_chars(after, [*excluded, *after.first_chars], most)
        branches = self._rests.merged(self._rests.branches_of(after, path, "any_text"))
        free = self._rests.free_text(branches, excluded=excluded, max_chars=most)
        if max_tokens is not None and free.reading is not Reading.TOKENS:
            raise ConstraintError(
                f"{path}.max_tokens is only supported where a special token or the answer's end "
                "follows, and without max_chars and texts in excludes"
            )
        ends = after.may_end
        return Rest(self._rests.named(free.until(branches, may_end=ends, max_tokens=max_tokens)))

    def _sequence(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        elements = list(enumerate(listed(form, "elements", path)))
        for index, element in reversed(elements):
            after = self._rest(element, f"{path}.elements[{index}]", after)
        return after

    def _or(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        return self._rests.any_of(
            self._rest(element, f"{path}.elements[{index}]", after)
            for index, element in enumerate(listed(form, "elements", path))
        )

    def _optional(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        content = self._rest(form.get("content"), f"{path}.content", after)
        return self._rests.any_of([content, after])

    def _star(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        return self._repeated(form, path, after, 0, None)

    def _plus(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        return self._repeated(form, path, after, 1, None)

    def _repeat(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        return self._repeated(form, path, after, *bounds(form, path))

    def _repeated(
        self, form: Mapping[str, Any], path: str, after: Rest, least: int, most: int | None
    ) -> Rest:
        content = self._rest(form.get("content"), f"{path}.content", OPEN)
        return self._rests.times(content, after, least, most)

    def _tag(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        return self._rests.begun(self._begin(form, path), self._content_and_end(form, path, after))

    def _begin(self, form: Any, path: str) -> str:
        """The text that begins a tag; that of a token is its spelling."""
        begin = form.get("begin") if isinstance(form, Mapping) else None
        if isinstance(begin, Mapping):
            return self._spelled(self._token_id(begin, f"{path}.begin"), f"{path}.begin")
        return text(form, "begin", path)

    def _content_and_end(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        """The rest of a tag behind its beginning."""
        given, end_id = form.get("end"), None
        if isinstance(given, Mapping):
            end_id = self._token_id(given, f"{path}.end")
            given = self._spelled(end_id, f"{path}.end")
        listed_ends = given if isinstance(given, list) else [given]
        ends = [end for end in listed_ends if isinstance(end, str)]
        if not ends or len(ends) != len(listed_ends):
            raise ConstraintError(
                f"{path}.end must be a string, a list of strings or a format of type token"
            )
        self._end_ids.append(end_id)
        content = self._rest(
            form.get("content"),
            f"{path}.content",
            self._rests.any_of(self._rests.begun(end, after) for end in ends),
        )
        self._end_ids.pop()
        return content

    def _triggered_tags(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        triggers = listed(form, "triggers", path)
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise ConstraintError(f"{path}.triggers must be strings that are not empty")
        return self._tags_in_text(
            form, path, after, triggers, self._rests.free_text, self._excluded(form, path)
        )

    def _token_triggered_tags(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        triggers = [
            self._spelled(self._tokens.id_of(token, f"{path}.trigger_tokens"), path)
            for token in listed(form, "trigger_tokens", path)
        ]
        excluded = self._excluded_tokens(form, path)
        return self._tags_in_text(form, path, after, triggers, self._rests.free_tokens, excluded)

    def _tags_in_text(
        self,
        form: Mapping[str, Any],
        path: str,
        after: Rest,
        triggers: Sequence[str],
        free_text: Callable[..., FreeText],
        excluded: Any,
    ) -> Rest:
        name, self._tags_field = self._tags_field, "tags"
        at_least_one = switch(form, "at_least_one", path)
        is_one = switch(form, "stop_after_first", path)
        following = after if is_one else OPEN
        rests: dict[str, list[str]] = {}
        whole: list[Rest] = []
        for index, tag in enumerate(listed(form, name, path)):
            place = f"{path}.{name}[{index}]"
            begin = self._begin(tag, place)
            marker, inside = self._triggered(begin, triggers, place)
            content = self._content_and_end(tag, place, following)
            whole.append(self._rests.begun(begin, content))
            rest = sequence((self._lark.literal(inside), content.expression))
            rests.setdefault(marker, []).append(rest or '""')
        branches = [Branch(m, self._lark.rule(choice(parts))) for m, parts in rests.items()]
        first = self._rests.any_of(whole)
        if at_least_one and is_one:
            return first
        ends = self._rests.branches_of(after, path, form["type"])
        free = free_text([*branches, *ends], excluded=excluded)
        if is_one:
            all_branches = self._rests.merged([*branches, *ends])
            return Rest(self._rests.named(free.until(all_branches, may_end=after.may_end)))
        around = self._rests.named(free.around(branches, ends, may_end=after.may_end))
        if not at_least_one:
            return Rest(around)
        markers = first.branches or ()
        return Rest(
            self._rests.named(sequence((first.expression, around))),
            tuple(Branch(b.marker, sequence((b.rest, around))) for b in markers),
        )

    def _triggered(self, begin: str, triggers: Sequence[str], path: str) -> tuple[str, str]:
        """What begins a tag in free text, and the rest of its beginning."""
        matching = [trigger for trigger in dict.fromkeys(triggers) if begin.startswith(trigger)]
        if len(matching) != 1:
            number = "more than one" if matching else "none"
            raise ConstraintError(f"{path}.begin begins with {number} of the triggers")
        (found,) = matching
        first = self._lark.pieces(begin)[0]
        if isinstance(first, int) and (token := self._lark.spelled(first)).startswith(found):
            found = token  # the trigger is a part of this token
        return found, begin.removeprefix(found)

    def _tags_with_separator(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        is_one = switch(form, "stop_after_first", path)
        least = 1 if switch(form, "at_least_one", path) else 0
        separator = self._lark.literal(text(form, "separator", path))
        tags = self._rests.any_of(
            self._tag(_tag_of(tag), f"{path}.tags[{index}]", after if is_one else OPEN)
            for index, tag in enumerate(listed(form, "tags", path))
        )
        if not is_one:
            return self._rests.times(tags, after, least, None, separator)
        return tags if least else self._rests.any_of([tags, after])

    def _dispatch(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        def pattern(value: Any, place: str) -> str:
            if not isinstance(value, str) or not value:
                raise ConstraintError(f"{place} must be a string that is not empty")
            return value

        excluded = self._excluded(form, path)
        return self._dispatched(form, path, after, pattern, self._rests.free_text, excluded)

    def _token_dispatch(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        def pattern(value: Any, place: str) -> str:
            return self._spelled(self._tokens.id_of(value, place), place)

        excluded = self._excluded_tokens(form, path)
        return self._dispatched(form, path, after, pattern, self._rests.free_tokens, excluded)

    def _dispatched(
        self,
        form: Mapping[str, Any],
        path: str,
        after: Rest,
        pattern: Callable[[Any, str], str],
        free_text: Callable[..., FreeText],
        excluded: Any,
    ) -> Rest:
        loops = switch(form, "loop", path, default=True)
        ends = self._rests.branches_of(after, path, form["type"])
        branches = []
        for index, rule in enumerate(listed(form, "rules", path)):
            place = f"{path}.rules[{index}]"
            if not isinstance(rule, list) or len(rule) != 2:
                raise ConstraintError(f"{place} must be a list of a pattern and a format")
            content = self._rest(rule[1], f"{place}[1]", OPEN if loops else after)
            branches.append(Branch(pattern(rule[0], f"{place}[0]"), content.expression))
        free = free_text([*branches, *ends], excluded=excluded)
        if loops:
            return Rest(self._rests.named(free.around(branches, ends, may_end=after.may_end)))
        all_branches = self._rests.merged([*branches, *ends])
        return Rest(self._rests.named(free.until(all_branches, may_end=after.may_end)))

    def _token(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        token_id = self._token_id(form, path)
        if token_id in self._spellings:
            return self._rests.begun(self._spellings[token_id], after)
        return Rest(self._rests.named(token_class([token_id]), after))

    def _exclude_token(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        excluded = self._excluded_tokens(form, path) | self._tokens.end_ids
        if (end_id := self._end_ids[-1]) is not None:
            excluded |= {end_id}
        return Rest(self._rests.named(token_class(excluded, negated=True), after))

    def _any_tokens(self, form: Mapping[str, Any], path: str, after: Rest) -> Rest:
        branches = self._rests.branches_of(after, path, "any_tokens")
        free = self._rests.free_tokens(branches, excluded=self._excluded_tokens(form, path))
        if free.reading is not Reading.TOKENS:
            raise ConstraintError(f"{path}: a special token or the answer's end must follow it")
        most = limit(form, "max_tokens", path)
        return Rest(self._rests.named(free.until(branches, may_end=after.may_end, max_tokens=most)))

    def _token_id(self, form: Mapping[str, Any], path: str) -> int:
        if form.get("type") != "token":
            raise ConstraintError(f"{path}.type must be token")
        return self._tokens.id_of(form.get("token"), f"{path}.token")

    def _spelled(self, token_id: int, path: str) -> str:
        if token_id not in self._spellings:
            raise ConstraintError(f"{path}: token {token_id} is no special token of the model")
        return self._spellings[token_id]

    def _excluded_tokens(self, form: Mapping[str, Any], path: str) -> frozenset[int]:
        place = f"{path}.exclude_tokens"
        tokens = optional_list(form, "exclude_tokens", path)
        return frozenset(self._tokens.id_of(token, place) for token in tokens)

    def _excluded(self, form: Mapping[str, Any], path: str) -> list[str]:
        """The texts that free text does not contain."""
        found = optional_list(form, "excludes", path)
        for index, one in enumerate(found):
            place = f"{path}.excludes[{index}]"
            if not isinstance(one, str) or not one:
                raise ConstraintError(f"{place} must be a string that is not empty")
            pieces = self._lark.pieces(one)
            if len(pieces) > 1 and any(isinstance(piece, int) for piece in pieces):
                raise ConstraintError(f"{place}: beside a special token there may be no other text")
        return found


def _tag_of(form: Any) -> Mapping[str, Any]:
    return form if isinstance(form, Mapping) else {}
