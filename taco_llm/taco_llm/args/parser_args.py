"""The gateway's arguments for tool calls and reasoning in the text of answers."""

from dataclasses import dataclass

from taco_llm.args.flags import GATEWAY, flag
from taco_proto.errors import ArgumentError

_GATEWAY = (GATEWAY,)
_PLUGINS = {
    "tool_parser_plugin": "tool_call_parser",
    "reasoning_parser_plugin": "reasoning_parser",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserArgs:
    """Formats of tool calls and reasoning."""

    enable_auto_tool_choice: bool = flag(
        "Let the model decide whether it calls a tool of a chat request. Needs --tool-call-parser.",
        _GATEWAY,
        default=False,
    )
    tool_call_parser: str | None = flag(
        "Format in which the model writes tool calls: hermes, mistral, llama3_json, llama4_json, "
        "pythonic, llama4_pythonic, deepseek_v3, deepseek_v31, kimi_k2, glm45, glm47, qwen3_coder, "
        "qwen3_xml, seed_oss, minimax_m2, minimax, internlm, granite, granite-20b-fc, jamba, "
        "longcat, phi4_mini_json, olmo3, xlam, ernie45 or openai; auto: the checkpoint's own "
        "response_template. Use it with --enable-auto-tool-choice. See docs/tools.md.",
        _GATEWAY,
        default=None,
        metavar="NAME",
    )
    tool_parser_plugin: str | None = flag(
        "Python file, module or JSON file with further formats for --tool-call-parser. See "
        "docs/tools.md.",
        _GATEWAY,
        default=None,
        metavar="PLACE",
        is_advanced=True,
    )
    reasoning_parser: str | None = flag(
        "Format in which the model writes its reasoning: deepseek_r1, deepseek_v3, qwen3, glm45, "
        "glm47, kimi_k2, minimax_m2, seed_oss, olmo3, holo2, step3, granite, mistral or "
        "openai_gptoss; auto: the checkpoint's own response_template. Default: openai_gptoss for "
        "gpt-oss; else reasoning is part of the content.",
        _GATEWAY,
        default=None,
        metavar="NAME",
    )
    reasoning_parser_plugin: str | None = flag(
        "Python file, module or JSON file with further formats for --reasoning-parser. See "
        "docs/tools.md.",
        _GATEWAY,
        default=None,
        metavar="PLACE",
        is_advanced=True,
    )

    def _check_parsers(self) -> None:
        """Raises:
        ConfigurationError: a flag needs another one.
        """
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ArgumentError(
                "enable_auto_tool_choice needs tool_call_parser, the format of the model's calls"
            )
        for plugin, parser in _PLUGINS.items():
            if getattr(self, plugin) is not None and getattr(self, parser) is None:
                raise ArgumentError(
                    f"{plugin} needs {parser}, the name of one of the plug-in's formats"
                )
