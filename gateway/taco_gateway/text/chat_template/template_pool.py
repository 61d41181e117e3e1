"""Processes that render chat templates, started as they are needed and replaced when they are
lost.
"""

from dataclasses import dataclass
from typing import Any

from taco_gateway.sandbox.process_pool import ProcessLostError, ProcessPool
from taco_proto.errors import InvalidParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFeatures:
    """What a template says of itself before it runs.

    Attributes:
        reads_parts: it walks through a message's content part by part.
        reads_strings: it takes content that is a string.
        reads_tool_calls: it reads a message's tool_calls.
        variables: names that it reads and that are given neither by it nor by the sandbox.
    """

    reads_parts: bool
    reads_strings: bool
    reads_tool_calls: bool
    variables: frozenset[str]


class TemplatePool:
    """Renders templates in processes beside this one. `render` blocks: call it from a thread."""

    def __init__(self) -> None:
        self._processes = ProcessPool("taco_gateway.text.chat_template.template_process")

    def analyze(self, template: str) -> TemplateFeatures:
        """Raises:
        InvalidParameterError: the source is no Jinja template.
        """
        reply = self._ask({"template": template})
        if "error" in reply:
            message = f"This is no chat template: {reply['error']}"
            raise InvalidParameterError(message, "chat_template")
        return TemplateFeatures(
            reads_parts=reply["reads_parts"],
            reads_strings=reply["reads_strings"],
            reads_tool_calls=reply["reads_tool_calls"],
            variables=frozenset(reply["variables"]),
        )

    def render(self, template: str, variables: dict[str, Any]) -> str:
        """Raises:
        InvalidParameterError: the template fails, or runs into a limit.
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
