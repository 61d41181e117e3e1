"""Rules for the tool calls of an answer, made from the format in which the model writes them."""

import json
from collections.abc import Sequence

from taco_gateway.text.grammar.answer_rules import CallableTool, CallRules, Enforcement
from taco_gateway.text.grammar.lark_builder import (
    SPACES,
    LarkBuilder,
    choice,
    quoted,
    sequence,
)
from taco_gateway.text.grammar.object_schema import object_schema
from taco_gateway.text.grammar.python_arguments import is_python_name, python_arguments
from taco_gateway.text.grammar.tagged_values import tagged_arguments
from taco_gateway.text.response.formats import JsonCall, NamedCall, TaggedCall

_NUMBER = "/[0-9]{1,4}/"  # in the id of a call


class CallGrammar:
    """Writes the rules of one request's calls.

    Raises:
        ConstraintError: the format cannot write a tool's name or arguments.
    """

    def __init__(self, lark: LarkBuilder, rules: CallRules) -> None:
        self._lark = lark
        self._rules = rules
        self._format = rules.format
        self._spaces = f"{lark.terminal(SPACES)}?"
        self._closes = [lark.literal(marker) for marker in self._format.closes]
        self._single = self._single_calls()
        self._listed = self._listed_calls()
        self._section = lark.rule(self._one_section())

    def after_marker(self) -> str:
        """The rest of an answer behind the marker that opens its first section of calls."""
        # Without a marker that closes it, a list is the last section.
        is_series = self._format.has_list or self._format.separator
        is_last = self._listed and is_series and not self._closes
        if self._rules.has_one_call or (is_last and not self._single):
            return self._section
        again = sequence((self._spaces, self._any_marker()))
        if not is_last:
            return self._lark.rule(f"{self._section} ({again} {self._section})*")
        repeated = f"{self._spaces} {self._single} ({again} {self._spaces} {self._single})*"
        return self._lark.rule(choice([repeated, f"{self._spaces} {self._listed}"]))

    def sections(self) -> str:
        """An answer of calls only."""
        marked = sequence((self._any_marker(), self.after_marker()))
        if not self._format.starts_answer:
            return marked
        return choice([marked, self.unmarked()])

    def unmarked(self) -> str:
        """An answer of calls that begins without a marker."""
        return self._lark.rule(sequence((self._spaces, self._forms())))

    def _forms(self) -> str:
        """The calls between the markers of a section."""
        return choice(form for form in (self._listed, self._single) if form)

    def _any_marker(self) -> str:
        return choice(map(self._lark.literal, self._format.opens))

    def _one_section(self) -> str:
        """A section of calls without the marker that opens it."""
        end = sequence((self._spaces, choice(self._closes))) if self._closes else ""
        return sequence((self._spaces, self._forms(), end))

    def _single_calls(self) -> str:
        """Calls outside of a list; empty: the format has no such calls."""
        form = self._format
        if form.tagged_call is not None:
            call = self._tagged_calls(form.tagged_call)
            is_enclosed = bool(form.tagged_call.name_opens)
        elif form.named_call is not None:
            call = self._named_calls(form.named_call)
            is_enclosed = bool(form.named_call.after)
        else:
            return ""
        if is_enclosed and self._closes and not self._rules.has_one_call:
            # Their own markers enclose them, so they may follow each other.
            return f"{call} ({self._spaces} {call})*"
        return call

    def _listed_calls(self) -> str:
        """Calls that may be in a list or have separators; empty: the format has no such calls."""
        form = self._format
        if form.json_call is not None:
            return self._several(self._json_calls(form.json_call))
        return "" if form.python_call is None else self._several(self._python_calls())

    def _several(self, call: str) -> str:
        """Calls in brackets, or with separators."""
        spaces, separator = self._spaces, self._format.separator
        calls = call
        if separator and not self._rules.has_one_call:
            calls = f"{call} ({spaces} {quoted(separator)} {spaces} {call})*"
        if not self._format.has_list:
            return calls
        return f'"[" {spaces} {calls} {spaces} "]"'

    def _json_calls(self, form: JsonCall) -> str:
        spaces = self._spaces
        keys = choice(quoted(json.dumps(key)) for key in form.argument_keys)
        between = self._lark.rule(f'{spaces} "," {spaces} {keys} {spaces} ":" {spaces}')
        calls = [
            f"{quoted(json.dumps(tool.name, ensure_ascii=False))} {between} {self._object(tool)}"
            for tool in self._rules.tools
        ]
        name_key = quoted(json.dumps(form.name_key))
        begin = f'"{{" {spaces} {name_key} {spaces} ":" {spaces}'
        return self._lark.rule(f'{begin} {choice(calls)} {spaces} "}}"')

    def _named_calls(self, form: NamedCall) -> str:
        before = self._lark.literal(form.before) if form.before else ""
        # An end that is no brace is text between the name and the arguments.
        between = "".join(form.between[:1] or [end for end in form.name_ends[:1] if end != "{"])
        after = self._lark.literal(form.after[0]) if form.after else ""
        calls = [
            sequence(
                (
                    self._name_in_id(form, self._plain_name(tool, form.name_ends)),
                    self._lark.literal(between),
                    self._object(tool),
                )
            )
            for tool in self._rules.tools
        ]
        return self._lark.rule(sequence((before, choice(calls), after)))

    def _name_in_id(self, form: NamedCall, name: str) -> str:
        """An expression for a name, and for the id around it if the model writes one."""
        if not form.id_closes:
            return quoted(name)
        written = quoted(f"{form.id_opens}{name}{form.id_closes}")
        return f"{written} {self._lark.terminal(_NUMBER)}"

    def _python_calls(self) -> str:
        calls = []
        for tool in self._rules.tools:
            if not is_python_name(tool.name):
                raise tool.error(f"the model's format of calls cannot write the name {tool.name!r}")
            calls.append(f'{quoted(f"{tool.name}(")} {python_arguments(self._lark, tool)} ")"')
        return self._lark.rule(choice(calls))

    def _tagged_calls(self, form: TaggedCall) -> str:
        literal = self._lark.literal
        ends = [form.name_closes] if form.name_closes else []
        if not form.name_closes.strip():
            ends += [form.key_opens, form.call_closes]
        calls = [
            sequence(
                (
                    quoted(self._plain_name(tool, ends)),
                    literal(form.name_closes),
                    self._spaces,
                    tagged_arguments(self._lark, form, tool),
                )
            )
            for tool in self._rules.tools
        ]
        return self._lark.rule(
            sequence((literal(form.name_opens), choice(calls), literal(form.call_closes)))
        )

    def _object(self, tool: CallableTool) -> str:
        """The arguments as a JSON object."""
        schema = {"type": "object"}
        if tool.enforcement is not Enforcement.NONE:
            schema = object_schema(tool)
        is_lenient = tool.enforcement is not Enforcement.STRICT
        return self._lark.part("json", schema, tool.place, is_lenient=is_lenient)

    def _plain_name(self, tool: CallableTool, ends: Sequence[str]) -> str:
        """The name of a tool where it is not quoted."""
        if tool.name != tool.name.strip() or any(end in tool.name for end in ends):
            raise tool.error(f"the model's format of calls cannot write the name {tool.name!r}")
        return tool.name
