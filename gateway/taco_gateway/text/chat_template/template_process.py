"""Child process that analyzes and renders chat templates; `template_pool` starts it.

A template is a program from a checkpoint. Jinja's sandbox keeps it from accessing anything, but not
from running without end: `child_loop` ends a process that exceeds its limits.

A request with "template" and "variables" renders; with "template" alone it analyzes. Replies are
{"text"}, the fields of `TemplateFeatures`, or {"error"}, sometimes with OpenAI's "code".

This module imports little besides jinja2, so that it starts fast. Its globals are those of Hugging
Face's chat templates.
"""

import functools
import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from taco_gateway.sandbox.child_loop import serve_json
from taco_gateway.text.chat_template.call_arguments import join_arguments

CPU_SECONDS = 0.8
MAX_MEMORY_BYTES = 2**30
MAX_OUTPUT_CHARS = 2**23


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training.

    Rendering keeps the text and drops the mark.
    """

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class OutputTooLongError(Exception):
    pass


_ENVIRONMENT = _environment()


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)


def _render(source: str, variables: dict[str, Any]) -> str:
    pieces = []
    num_chars = 0
    join_arguments(variables["messages"])
    for piece in _compiled(source).generate(variables):
        num_chars += len(piece)
        if num_chars > MAX_OUTPUT_CHARS:
            raise OutputTooLongError
        pieces.append(piece)
    return "".join(pieces)


def _analyze(source: str) -> dict[str, Any]:
    """The fields of `TemplateFeatures`."""
    tree = _ENVIRONMENT.parse(source)
    assigned = {
        node.target.name: node.node
        for node in tree.find_all(jinja2.nodes.Assign)
        if isinstance(node.target, jinja2.nodes.Name)
    }
    reads_parts = any(_is_content(loop.iter, assigned) for loop in tree.find_all(jinja2.nodes.For))
    tests_string = any(test.name == "string" for test in tree.find_all(jinja2.nodes.Test))
    return {
        "reads_parts": reads_parts,
        "reads_strings": tests_string or not reads_parts,
        "tests_missing_content": any(
            test.name == "none" and _is_content(test.node, assigned)
            for test in tree.find_all(jinja2.nodes.Test)
        ),
        "reads_tool_calls": _names(tree, "tool_calls"),
        "reads_thinking": _names(tree, "thinking") and not _names(tree, "reasoning_content"),
        "knows_developers": _names(tree, "developer"),
        "variables": sorted(
            jinja2.meta.find_undeclared_variables(tree) - set(_ENVIRONMENT.globals)
        ),
    }


def _names(tree: jinja2.nodes.Template, attribute: str) -> bool:
    """Whether a template reads or tests an attribute of this name."""
    if any(node.attr == attribute for node in tree.find_all(jinja2.nodes.Getattr)):
        return True
    return any(node.value == attribute for node in tree.find_all(jinja2.nodes.Const))


def _is_content(node: jinja2.nodes.Node, assigned: dict[str, jinja2.nodes.Node]) -> bool:
    """Whether an expression is a message's content, also through a filter or a variable."""
    match node:
        case jinja2.nodes.Getattr(attr="content"):
            return True
        case jinja2.nodes.Getitem(arg=jinja2.nodes.Const(value="content")):
            return True
        case jinja2.nodes.Filter(node=jinja2.nodes.Node() as inner):
            return _is_content(inner, assigned)
        case jinja2.nodes.Name(name=name) if name in assigned:
            return _is_content(assigned[name], {k: v for k, v in assigned.items() if k != name})
        case _:
            return False


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        if "variables" not in request:
            return _analyze(request["template"])
        return {"text": _render(request["template"], request["variables"])}
    except OutputTooLongError:
        return {
            "error": f"its output has more than {MAX_OUTPUT_CHARS} characters",
            "code": "context_length_exceeded",
        }
    except (MemoryError, OverflowError, RecursionError):
        return {"error": "it needs too much memory"}
    except Exception as error:  # a template can fail in any way
        return {"error": str(error)[:1000] or type(error).__name__}


if __name__ == "__main__":
    serve_json(_answer, max_memory_bytes=MAX_MEMORY_BYTES, cpu_seconds=lambda _: CPU_SECONDS)
