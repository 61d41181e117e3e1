"""The formats that `--tool-call-parser` and `--reasoning-parser` name.

Sources: the chat templates of the checkpoints that use them, and vLLM's documentation for names.
"""

from collections.abc import Mapping

from taco_gateway.text.response.formats import (
    JsonCall,
    NamedCall,
    PythonCall,
    ReasoningFormat,
    TaggedCall,
    ToolFormat,
)

CHANNEL_TOOLS, CHANNEL_REASONING = "openai", "openai_gptoss"

TOOL_FORMATS: Mapping[str, ToolFormat] = {
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
    "qwen3_coder": ToolFormat(
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        bare_opens=("<function=",),
        tagged_call=TaggedCall(
            name_opens="<function=",
            name_closes=">",
            key_opens="<parameter=",
            key_closes=">",
            value_closes="</parameter>",
            call_closes="</function>",
        ),
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
}

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat(opens=("<think>",), closes=("</think>",), starts_inside=True),
    "qwen3": ReasoningFormat(opens=("<think>",), closes=("</think>",)),
    "granite": ReasoningFormat(
        opens=("Here is my thought process:", "Here's my thought process:"),
        closes=("Here is my response:", "Here's my response:"),
    ),
    "mistral": ReasoningFormat(opens=("[THINK]",), closes=("[/THINK]",)),
}
