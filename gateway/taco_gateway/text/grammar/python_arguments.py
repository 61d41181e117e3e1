"""Rules for the arguments of a call in Python: `key=literal, …`.

Literals are written as JSON, which the reader of `python_calls` takes as well: it knows `true`,
`false` and `null`, and the strings of JSON are strings of Python.
"""

import re

from taco_gateway.text.grammar.answer_rules import CallableTool, Enforcement
from taco_gateway.text.grammar.lark_builder import SPACES, LarkBuilder, choice, quoted
from taco_gateway.text.grammar.object_schema import (
    NOT_WRITABLE,
    Property,
    is_open_object,
    properties,
)

_NAME = re.compile(r"\w[\w.-]*")
_KEY = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"


def is_python_name(name: str) -> bool:
    """Whether the reader of calls in Python takes a name."""
    return _NAME.fullmatch(name) is not None


def python_arguments(lark: LarkBuilder, tool: CallableTool) -> str:
    """An expression for the arguments of a call, without the brackets; it may be empty.

    Raises:
        ConstraintError: Python cannot write a name that the schema demands.
    """
    spaces = f"{lark.terminal(SPACES)}?"
    comma = f'{spaces} "," {spaces}'
    is_lenient = tool.enforcement is not Enforcement.STRICT
    named = list(properties(tool))
    if tool.enforcement is Enforcement.NONE or (is_lenient and not named and is_open_object(tool)):
        anything = lark.part("json", True, tool.place, is_lenient=True)
        argument = lark.rule(f'{lark.terminal(_KEY)} "=" {anything}')
        return f"({argument} ({comma} {argument})*)?"
    # From the last one on: the arguments from it to the end, behind a comma or at the beginning.
    later, first = "", '""'
    for part in reversed(named):
        argument = _argument(lark, tool, part, is_lenient=is_lenient)
        if not argument:
            continue
        begun = f"{argument} {later}".strip()
        first = lark.rule(begun if part.is_required else choice([begun, first]))
        following = f"{comma} {argument}"
        if not part.is_required:
            following = f"({following})?"
        later = lark.rule(f"{following} {later}".strip())
    return first


def _argument(lark: LarkBuilder, tool: CallableTool, part: Property, *, is_lenient: bool) -> str:
    """One argument; empty: an optional one that cannot be written."""
    place = f"/properties/{part.name}"
    if not is_python_name(part.name):
        if part.is_required:
            raise tool.error(f"the property {NOT_WRITABLE}", place)
        return ""
    value = lark.part("json", part.document, f"{tool.place}{place}", is_lenient=is_lenient)
    return lark.rule(f"{quoted(f'{part.name}=')} {value}")
