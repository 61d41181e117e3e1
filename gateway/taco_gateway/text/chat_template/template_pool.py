"""Analyzes and renders chat templates in sandboxed child processes."""

from dataclasses import dataclass
from typing import Any

from taco_gateway.sandbox.process_pool import ProcessLostError, ProcessPool
from taco_proto.errors import InvalidParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFeatures:
    """What a template reads, found by analysis of its source.

    Attributes:
        reads_parts: it iterates over the parts of a message's content.
        reads_strings: it accepts content that is a string.
        tests_missing_content: it tests whether a message has content.
        reads_tool_calls: it reads `tool_calls` of a message.
        reads_thinking: it reads the reasoning of a message as `thinking`, as that of gpt-oss does.
        knows_developers: it names the role `developer`.
        variables: names that it reads and that neither it nor the sandbox defines.
    """

    reads_parts: bool
    reads_strings: bool
    tests_missing_content: bool
    reads_tool_calls: bool
    reads_thinking: bool
    knows_developers: bool
    variables: frozenset[str]


class TemplatePool:
    """Runs templates in child processes. Methods block: call them from a thread."""

    def __init__(self) -> None:
        self._processes = ProcessPool("taco_gateway.text.chat_template.template_process")

    def analyze(self, template: str) -> TemplateFeatures:
        """Analyzes a template.

        Raises:
            InvalidParameterError: the source is not a Jinja template.
        """
        reply = self._ask({"template": template})
        if "error" in reply:
            message = f"This is not a chat template: {reply['error']}"
            raise InvalidParameterError(message, "chat_template")
        return TemplateFeatures(**{**reply, "variables": frozenset(reply["variables"])})

    def render(self, template: str, variables: dict[str, Any]) -> str:
        """Renders a template.

        Raises:
            InvalidParameterError: the template fails or exceeds a limit.
        """
        reply = self._ask({"template": template, "variables": variables})
        if "error" in reply:
            message = f"The chat template fails on these messages: {reply['error']}"
            raise InvalidParameterError(message, "messages", reply.get("code"))
        return reply["text"]

    def close(self) -> None:
        self._processes.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._processes.ask(request)
        except ProcessLostError:
            return {"error": "it takes too long"}
