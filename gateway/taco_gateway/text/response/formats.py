"""Descriptions of the text in which a model writes its reasoning and its tool calls.

A description is plain data. The parser of `response_parser` follows it; a grammar that forces tool
calls can be made from the same data.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The markers around a model's reasoning, which precedes its answer.

    Attributes:
        opens: markers that may open it.
        closes: markers that may close it.
        starts_inside: an answer begins inside the reasoning, unless the prompt ends with a marker
            that closes it.
        ends_at_calls: a marker that opens a section of calls also ends it. The marker is no part
            of the reasoning.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    starts_inside: bool = False
    ends_at_calls: bool = False

    def ends(self, tools: "ToolFormat | None") -> tuple[str, ...]:
        """All markers that end it, in an answer with such calls."""
        return self.closes if tools is None or not self.ends_at_calls else self.closes + tools.opens

    def literals(self) -> tuple[str, ...]:
        """All texts that may consist of or contain marker tokens."""
        return (*self.opens, *self.closes)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCall:
    """A call as one JSON object.

    Attributes:
        name_key: the key of the function's name.
        argument_keys: keys under which the arguments may be.
    """

    name_key: str = "name"
    argument_keys: tuple[str, ...] = ("arguments", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCall:
    """A call as a name followed by a JSON object with the arguments.

    Attributes:
        before: text before the name.
        name_ends: characters and markers that end the name.
        between: text between name and arguments. None of it is also accepted.
        after: texts that may follow the arguments.
        id_opens, id_closes: texts around the name that make it the call's id: the id is `id_opens`,
            the name, `id_closes` and a number. The answer keeps it, since the chat template wants
            it back. Without `id_closes` the model writes no id. The name alone is also accepted.
    """

    before: str = ""
    name_ends: tuple[str, ...]
    between: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    id_opens: str = ""
    id_closes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCall:
    """A call as nested tags. The tool's JSON schema gives the types of the values.

    Attributes:
        name_opens: text before the name; empty: the name follows the marker of the section.
        name_closes: text behind the name. A name without it, or with white space, also ends at the
            first key or at the end of the call.
        key_opens, key_closes, value_opens, value_closes, call_closes: the other tags. `value_opens`
            may be empty; white space before it is also accepted.
        trims_values: white space around a value does not belong to it.
        keeps_spaces: all white space around a value belongs to it. Without both, one line break on
            each side does not.
        guesses_types: a value without a type in the schema is JSON if it can be.
    """

    name_opens: str
    name_closes: str
    key_opens: str
    key_closes: str
    value_opens: str = ""
    value_closes: str
    call_closes: str
    trims_values: bool = False
    keeps_spaces: bool = False
    guesses_types: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCall:
    """A call in Python: `name(key=literal, …)`.

    A literal is a string, a number, True, False, None, a list or a dict.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a model writes tool calls.

    Attributes:
        opens: markers that open a section with calls.
        closes: markers that close it. Without any, it ends with its last call.
        bare_opens: how a call begins where the model has left out the marker of the section. Then
            only the names of the request's tools make a call.
        starts_answer: calls may also begin the answer, without a marker. Then only the names of the
            request's tools make a call.
        has_list: the section may be a list of calls in brackets.
        separator: text between the calls of a section.
        json_call, named_call, tagged_call, python_call: the forms that a call may have.
        num_id_chars: length of the ids of calls, where the chat template wants one; 0: any.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    bare_opens: tuple[str, ...] = ()
    starts_answer: bool = False
    has_list: bool = False
    separator: str = ""
    json_call: JsonCall | None = None
    named_call: NamedCall | None = None
    tagged_call: TaggedCall | None = None
    python_call: PythonCall | None = None
    num_id_chars: int = 0

    @property
    def first_char(self) -> str:
        """The character with which calls begin that begin the answer."""
        return "[" if self.has_list else "{"

    def literals(self) -> tuple[str, ...]:
        """All texts that may consist of or contain marker tokens."""
        named = self.named_call
        inside: tuple[str, ...] = ()
        if named is not None:
            inside += (named.before, *named.name_ends, *named.between, *named.after)
            inside += (named.id_opens, named.id_closes)
        if tagged := self.tagged_call:
            inside += (tagged.name_opens, tagged.name_closes, tagged.call_closes)
            inside += (tagged.key_opens, tagged.key_closes)
            inside += (tagged.value_opens, tagged.value_closes)
        return (*self.opens, *self.closes, *inside)
