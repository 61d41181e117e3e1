"""The formats that `--tool-call-parser` and `--reasoning-parser` name.

Sources: the chat templates of the checkpoints that use them, and vLLM's documentation for names.
"""

from collections.abc import Mapping
from dataclasses import replace

from taco_gateway.text.response.formats import (
    JsonCall,
    NamedCall,
    PythonCall,
    ReasoningFormat,
    TaggedCall,
    ToolFormat,
)

CHANNEL_TOOLS, CHANNEL_REASONING = "openai", "openai_gptoss"

_FUNCTION_TAGS = TaggedCall(
    name_opens="<function=",
    name_closes=">",
    key_opens="<parameter=",
    key_closes=">",
    value_closes="</parameter>",
    call_closes="</function>",
)
_KEY_TAGS = TaggedCall(
    name_opens="",
    name_closes="\n",
    key_opens="<arg_key>",
    key_closes="</arg_key>",
    value_opens="\n<arg_value>",
    value_closes="</arg_value>",
    call_closes="</tool_call>",
    keeps_spaces=True,
    guesses_types=True,
)

_TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat(opens=("<tool_call>",), closes=("</tool_call>",), json_call=JsonCall()),
    "mistral": ToolFormat(
        opens=("[TOOL_CALLS]",),
        has_list=True,
        separator=",",
        json_call=JsonCall(),
        named_call=NamedCall(name_ends=("[ARGS]", "[CALL_ID]", "{"), between=("[ARGS]",)),
        num_id_chars=9,
    ),
    "llama3_json": ToolFormat(
        opens=("<|python_tag|>",), starts_answer=True, separator=";", json_call=JsonCall()
    ),
    "pythonic": ToolFormat(
        opens=("<|python_start|>",),
        closes=("<|python_end|>",),
        starts_answer=True,
        has_list=True,
        separator=",",
        python_call=PythonCall(),
    ),
    "deepseek_v3": ToolFormat(
        opens=("<｜tool▁calls▁begin｜>",),
        closes=("<｜tool▁calls▁end｜>",),
        named_call=NamedCall(
            before="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            name_ends=("\n```json\n",),
            between=("\n```json\n",),
            after=("\n```<｜tool▁call▁end｜>",),
        ),
    ),
    "deepseek_v31": ToolFormat(
        opens=("<｜tool▁calls▁begin｜>",),
        closes=("<｜tool▁calls▁end｜>",),
        named_call=NamedCall(
            before="<｜tool▁call▁begin｜>",
            name_ends=("<｜tool▁sep｜>",),
            between=("<｜tool▁sep｜>",),
            after=("<｜tool▁call▁end｜>",),
        ),
    ),
    "kimi_k2": ToolFormat(
        opens=("<|tool_calls_section_begin|>",),
        closes=("<|tool_calls_section_end|>",),
        named_call=NamedCall(
            before="<|tool_call_begin|>",
            name_ends=("<|tool_call_argument_begin|>",),
            between=("<|tool_call_argument_begin|>",),
            after=("<|tool_call_end|>",),
            id_opens="functions.",
            id_closes=":",
        ),
    ),
    "qwen3_coder": ToolFormat(
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        bare_opens=("<function=",),
        tagged_call=_FUNCTION_TAGS,
    ),
    "seed_oss": ToolFormat(
        opens=("<seed:tool_call>",),
        closes=("</seed:tool_call>",),
        tagged_call=replace(_FUNCTION_TAGS, keeps_spaces=True),
    ),
    "minimax_m2": ToolFormat(
        opens=("<minimax:tool_call>",),
        closes=("</minimax:tool_call>",),
        tagged_call=TaggedCall(
            name_opens='<invoke name="',
            name_closes='">',
            key_opens='<parameter name="',
            key_closes='">',
            value_closes="</parameter>",
            call_closes="</invoke>",
            keeps_spaces=True,
        ),
    ),
    "glm45": ToolFormat(opens=("<tool_call>",), tagged_call=_KEY_TAGS),
    "glm47": ToolFormat(
        opens=("<tool_call>",),
        tagged_call=replace(_KEY_TAGS, name_closes="", value_opens="<arg_value>"),
    ),
    "internlm": ToolFormat(
        opens=("<|action_start|><|plugin|>",), closes=("<|action_end|>",), json_call=JsonCall()
    ),
    "granite": ToolFormat(
        opens=("<|tool_call|>", "<tool_call>"), has_list=True, separator=",", json_call=JsonCall()
    ),
    "jamba": ToolFormat(
        opens=("<tool_calls>",),
        closes=("</tool_calls>",),
        has_list=True,
        separator=",",
        json_call=JsonCall(),
    ),
    "minimax": ToolFormat(
        opens=("<tool_calls>",),
        closes=("</tool_calls>",),
        separator="\n",
        json_call=JsonCall(argument_keys=("arguments",)),
    ),
    "longcat": ToolFormat(
        opens=("<longcat_tool_call>",),
        closes=("</longcat_tool_call>",),
        json_call=JsonCall(argument_keys=("arguments",)),
    ),
    "granite-20b-fc": ToolFormat(
        opens=("<function_call>",), json_call=JsonCall(argument_keys=("arguments",))
    ),
    "phi4_mini_json": ToolFormat(
        opens=("functools[",), closes=("]",), separator=",", json_call=JsonCall()
    ),
    "xlam": ToolFormat(
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        starts_answer=True,
        has_list=True,
        separator=",",
        json_call=JsonCall(argument_keys=("arguments",)),
    ),
    "olmo3": ToolFormat(
        opens=("<function_calls>",),
        closes=("</function_calls>",),
        separator="\n",
        python_call=PythonCall(),
    ),
}
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    **_TOOL_FORMATS,
    "llama4_json": _TOOL_FORMATS["llama3_json"],
    "llama4_pythonic": _TOOL_FORMATS["pythonic"],
    "qwen3_xml": _TOOL_FORMATS["qwen3_coder"],
    "ernie45": _TOOL_FORMATS["hermes"],
}

# The answer begins inside the reasoning; or the prompt or the answer says whether it does.
_INSIDE = ReasoningFormat(opens=("<think>",), closes=("</think>",), starts_inside=True)
_MARKED = ReasoningFormat(opens=("<think>",), closes=("</think>",))

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": _INSIDE,
    "deepseek_v3": _MARKED,
    "glm45": _MARKED,
    "glm47": _MARKED,
    "holo2": _MARKED,
    "kimi_k2": ReasoningFormat(
        opens=("<think>",), closes=("</think>",), starts_inside=True, ends_at_calls=True
    ),
    "minimax_m2": _INSIDE,
    "olmo3": _MARKED,
    "qwen3": _MARKED,
    "seed_oss": ReasoningFormat(
        opens=("<seed:think>",), closes=("</seed:think>",), starts_inside=True
    ),
    "step3": _INSIDE,
    "granite": ReasoningFormat(
        opens=("Here is my thought process:", "Here's my thought process:"),
        closes=("Here is my response:", "Here's my response:"),
    ),
    "mistral": ReasoningFormat(opens=("[THINK]",), closes=("[/THINK]",)),
}
