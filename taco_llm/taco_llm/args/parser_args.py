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
        "Format in which the model writes tool calls: hermes, mistral, llama3_json, pythonic, "
        "deepseek_v3, qwen3_coder, internlm, granite or jamba; auto: the checkpoint's own "
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
        "Format in which the model writes its reasoning: deepseek_r1, qwen3, granite or mistral; "
        "auto: the checkpoint's own response_template. Default: reasoning is part of the content.",
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
