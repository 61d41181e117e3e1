"""Answers in each format of tool calls and reasoning, and transformers' own form of the formats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NAMES = ("f", "g")
SCHEMAS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {
            "a": {"type": "number"},
            "s": {"type": "string"},
            "o": {"type": ["object", "null"]},
        },
    },
    "g": {"type": "object", "properties": {}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ARGUMENTS = (
    '{"a":  1.50, "s": "x \\" }] ü\\n <b> \\\\", "o": {"l": [1, {}], "ü": null}}',
    "{}",
)
VALUES: tuple[dict[str, Any], ...] = (
    {"a": 1.5, "s": 'x " }] ü\n <b> \\', "o": {"l": [1, {}], "ü": None}},
    {},
)
_WHOLE_OBJECT = {"type": "function", "function": "{content}"}


def _transform(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One form of calls.

    Attributes:
        tools: name of the format.
        write: the text of the first calls of `NAMES`, which follows content.
        template: transformers' form of it; None: it has none.
        is_expressible: `auto` reads the template.
        has_same_bytes: the arguments are the bytes of `ARGUMENTS`.
        max_calls: number of calls that transformers' form can read.
    """

    tools: str
    write: Callable[[int], str]
    template: dict[str, Any] | None = None
    is_expressible: bool = True
    has_same_bytes: bool = True
    max_calls: int = 2


def _each(opens: str, closes: str, key: str, between: str = "") -> Callable[[int], str]:
    return lambda count: between.join(
        f'{opens}{{"name": "{name}", "{key}": {arguments}}}{closes}'
        for name, arguments in zip(NAMES[:count], ARGUMENTS, strict=False)
    )


def _list(opens: str, closes: str = "") -> Callable[[int], str]:
    def write(count: int) -> str:
        calls = _each("", "", "arguments", ",\n ")(count)
        return f"{opens}[{calls}]{closes}" if count else ""

    return write


def _fenced(count: int) -> str:
    calls = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜>"
        for name, arguments in zip(NAMES[:count], ARGUMENTS, strict=False)
    )
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>" if count else ""


def _named(count: int) -> str:
    pairs = zip(NAMES[:count], ARGUMENTS, strict=False)
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in pairs)


def _tagged(count: int) -> str:
    first = (
        "\n<tool_call>\n<function=f>\n<parameter=a>\n1.5\n</parameter>\n"
        '<parameter=s>\nx " }] ü\n <b> \\\n</parameter>\n'
        '<parameter=o>\n{"l": [1, {}], "ü": null}\n</parameter>\n</function>\n</tool_call>'
    )
    return "".join([first, "\n<tool_call>\n<function=g>\n</function>\n</tool_call>"][:count])


def _keys(line: str) -> Callable[[int], str]:
    """Calls of GLM, with `line` between their parts."""
    texts = ("1.5", VALUES[0]["s"], '{"l": [1, {}], "ü": null}')
    pairs = "".join(
        f"{line}<arg_key>{key}</arg_key>{line}<arg_value>{text}</arg_value>"
        for key, text in zip("aso", texts, strict=True)
    )
    calls = (f"\n<tool_call>f{pairs}{line}</tool_call>", f"\n<tool_call>g{line}</tool_call>")
    return lambda count: "".join(calls[:count])


def _invoked(count: int) -> str:
    calls = (
        '<invoke name="f">\n<parameter name="a">1.5</parameter>\n'
        f'<parameter name="s">{VALUES[0]["s"]}</parameter>\n'
        '<parameter name="o">{"l": [1, {}], "ü": null}</parameter>\n</invoke>\n',
        '<invoke name="g">\n</invoke>\n',
    )
    return _section("\n<minimax:tool_call>\n", calls[:count], "</minimax:tool_call>")


def _seed(count: int) -> str:
    first = (
        "\n<seed:tool_call>\n<function=f>\n<parameter=a>1.5</parameter>\n"
        f"<parameter=s>{VALUES[0]['s']}</parameter>\n"
        '<parameter=o>{"l": [1, {}], "ü": null}</parameter>\n</function>\n</seed:tool_call>'
    )
    return "".join(
        [first, "\n<seed:tool_call>\n<function=g>\n</function>\n</seed:tool_call>"][:count]
    )


def _with_ids(count: int) -> str:
    calls = [
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|>"
        for index, (name, arguments) in enumerate(zip(NAMES[:count], ARGUMENTS, strict=False))
    ]
    return _section("<|tool_calls_section_begin|>", calls, "<|tool_calls_section_end|>")


def _separated(count: int) -> str:
    calls = [
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"
        for name, arguments in zip(NAMES[:count], ARGUMENTS, strict=False)
    ]
    return _section("<｜tool▁calls▁begin｜>", calls, "<｜tool▁calls▁end｜>")


def _section(opens: str, calls: Sequence[str], closes: str) -> str:
    return f"{opens}{''.join(calls)}{closes}" if calls else ""


_PYTHON_CALLS = (
    "f(a=1.5, s='x \" }] ü\\n <b> \\\\', o={'l': [1, {}], \"ü\": None})",
    "g()",
)


def _python(count: int) -> str:
    calls = ", ".join(_PYTHON_CALLS[:count])
    return f"<|python_start|>[{calls}]<|python_end|>" if count else ""


def _python_lines(count: int) -> str:
    lines = [f"{call}\n" for call in _PYTHON_CALLS[:count]]
    lines = [line.replace("None", "null") for line in lines]
    return _section("<function_calls>\n", lines, "</function_calls>")


def _json_lines(count: int) -> str:
    return _section(
        "\n<tool_calls>\n", [_each("", "\n", "arguments")(count)][:count], "</tool_calls>"
    )


def _keys_template(name: str) -> dict[str, Any]:
    return {
        "open_pattern": name,
        "close": "</tool_call>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*"
            r"<arg_value>(?P<value>.*?)</arg_value>",
            "value_parser": {"name": "json", "args": {"allow_non_json": True}},
        },
        "transform": _transform("{name}", "{content}"),
    }


SAMPLES: dict[str, Sample] = {
    "hermes": Sample(
        tools="hermes",
        write=_each("\n<tool_call>\n", "\n</tool_call>", "arguments"),
        template={
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": _WHOLE_OBJECT,
        },
    ),
    "mistral": Sample(
        tools="mistral",
        write=_list("[TOOL_CALLS] "),
        template={
            "open": "[TOOL_CALLS]",
            "content": "json",
            "transform_each": True,
            "transform": _transform("{name}", "{arguments}"),
        },
    ),
    "mistral, name first": Sample(
        tools="mistral",
        write=_named,
        template={
            "open_pattern": r"\[TOOL_CALLS\](?P<name>\w+)\[ARGS\]",
            "close_pattern": r"(?=\[TOOL_CALLS\])",
            "repeats": True,
            "content": "json",
            "transform": _transform("{name}", "{content}"),
        },
        is_expressible=False,
    ),
    "llama3_json": Sample(
        tools="llama3_json",
        write=_each("<|python_tag|>", "", "parameters", "; "),
        template={
            "open": "<|python_tag|>",
            "content": "json",
            "repeats": True,
            "transform": _transform("{content.name}", "{content.parameters}"),
        },
        max_calls=1,
    ),
    "deepseek_v3": Sample(
        tools="deepseek_v3",
        write=_fenced,
        template={
            "open_pattern": r"(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>function"
            r"<｜tool▁sep｜>(?P<name>[^\n]+)\n```json\n",
            "close_pattern": r"\n```<｜tool▁call▁end｜>(?:<｜tool▁calls▁end｜>)?",
            "repeats": True,
            "content": "json",
            "transform": _transform("{name}", "{content}"),
        },
        is_expressible=False,
    ),
    "qwen3_coder": Sample(
        tools="qwen3_coder",
        write=_tagged,
        template={
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"
            },
            "transform": _transform("{name}", "{content}"),
        },
        has_same_bytes=False,
    ),
    "internlm": Sample(
        tools="internlm",
        write=_each("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters"),
        template={
            "open_pattern": r"\s*<\|action_start\|><\|plugin\|>",
            "close": "<|action_end|>",
            "repeats": True,
            "content": "json",
            "transform": _transform("{content.name}", "{content.parameters}"),
        },
    ),
    "granite": Sample(
        tools="granite",
        write=_list("<|tool_call|>"),
        template={
            "open": ["<|tool_call|>", "<tool_call>"],
            "content": "json",
            "transform_each": True,
            "transform": _transform("{name}", "{arguments}"),
        },
    ),
    "jamba": Sample(
        tools="jamba",
        write=_list("<tool_calls>", "</tool_calls>"),
        template={
            "open": "<tool_calls>",
            "close": "</tool_calls>",
            "content": "json",
            "transform_each": True,
            "transform": _transform("{name}", "{arguments}"),
        },
    ),
    "pythonic": Sample(tools="pythonic", write=_python, has_same_bytes=False),
    "glm45": Sample(
        tools="glm45",
        write=_keys("\n"),
        template=_keys_template(r"\s*<tool_call>(?P<name>[^\n<]+)\n"),
        has_same_bytes=False,
    ),
    "glm47": Sample(
        tools="glm47",
        write=_keys(""),
        template=_keys_template(r"\s*<tool_call>(?P<name>[^\n<]+)"),
        has_same_bytes=False,
    ),
    "minimax_m2": Sample(tools="minimax_m2", write=_invoked, has_same_bytes=False),
    "seed_oss": Sample(
        tools="seed_oss",
        write=_seed,
        template={
            "open_pattern": r"\s*<seed:tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</seed:tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>"
            },
            "transform": _transform("{name}", "{content}"),
        },
        has_same_bytes=False,
    ),
    "kimi_k2": Sample(tools="kimi_k2", write=_with_ids),
    "deepseek_v31": Sample(tools="deepseek_v31", write=_separated),
    "minimax": Sample(tools="minimax", write=_json_lines),
    "longcat": Sample(
        tools="longcat",
        write=_each("\n<longcat_tool_call>\n", "\n</longcat_tool_call>", "arguments"),
    ),
    "granite-20b-fc": Sample(
        tools="granite-20b-fc", write=_each("<function_call> ", "", "arguments")
    ),
    "phi4_mini_json": Sample(tools="phi4_mini_json", write=_list("functools")),
    "xlam": Sample(tools="xlam", write=_list("<tool_call>", "</tool_call>")),
    "olmo3": Sample(tools="olmo3", write=_python_lines, has_same_bytes=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSample:
    """One form of reasoning, `text` before the content, and transformers' form of it."""

    text: str
    template: dict[str, Any]


REASONING_SAMPLES: dict[str, ReasoningSample] = {
    "qwen3": ReasoningSample(
        text="<think>\nhm <b\n</think>\n\n", template={"open": "<think>", "close": "</think>"}
    ),
    "deepseek_r1": ReasoningSample(
        text="hm <b\n</think>\n\n",
        template={"open_pattern": r"(?:<think>\s*|^)", "close": "</think>"},
    ),
    "granite": ReasoningSample(
        text="Here's my thought process: hm <b Here's my response: ",
        template={
            "open": ["Here is my thought process:", "Here's my thought process:"],
            "close": ["Here is my response:", "Here's my response:"],
        },
    ),
    "mistral": ReasoningSample(
        text="[THINK]hm <b[/THINK]", template={"open": "[THINK]", "close": "[/THINK]"}
    ),
}


def response_template(sample: Sample, reasoning: str) -> dict[str, Any]:
    """A whole response template of transformers."""
    return {
        "start_anchor": "assistant:",
        "fields": {
            "reasoning_content": REASONING_SAMPLES[reasoning].template,
            "tool_calls": sample.template,
            "content": {},
        },
    }


def pieces(text: str, lengths: Sequence[int]) -> list[str]:
    """The text in pieces whose lengths are `lengths`, again and again."""
    cut: list[str] = []
    at = 0
    while at < len(text):
        length = lengths[len(cut) % len(lengths)]
        cut.append(text[at : at + length])
        at += length
    return cut
