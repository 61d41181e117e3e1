"""A model's chat template: its source, the variables it reads, and the form of its messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taco_gateway.text.chat_template.template_pool import TemplateFeatures, TemplatePool
from taco_proto.errors import ConfigurationError, InvalidParameterError

# For models without a template: the most frequent form of dialogues on the web.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_GIVEN_VARIABLES = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token"}
)
# Values of fields that have no effect where the template does not read the field; None: any value.
_HINTS: Mapping[str, tuple[str, ...] | None] = {"reasoning_effort": None, "verbosity": ("medium",)}


@dataclass
class ChatTemplate:
    """A template, analyzed at the first use. Methods block: call them from a thread.

    Args:
        source: Jinja source.
        pool: the processes that render it.
    """

    source: str
    pool: TemplatePool
    _features: TemplateFeatures | None = field(default=None, init=False)

    @property
    def features(self) -> TemplateFeatures:
        """What the template reads.

        Raises:
            InvalidParameterError: the source is not a Jinja template.
        """
        if self._features is None:
            self._features = self.pool.analyze(self.source)
        return self._features

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """Renders a conversation.

        Args:
            messages: content is a string or a list of text parts.
            variables: `add_generation_prompt`, `bos_token`, `eos_token`, `tools`, `documents`.
            template_kwargs: variables of the client.

        Raises:
            InvalidParameterError: the template does not read one of the client's variables,
                fails, or exceeds a limit.
        """
        given = dict(template_kwargs)
        for name, value in template_kwargs.items():
            if name in _HINTS and name not in self.features.variables:
                self._check_hint(name, value)
                del given[name]
            elif name in _GIVEN_VARIABLES or name not in self.features.variables:
                raise InvalidParameterError(
                    f"the chat template has no variable {name[:100]!r}", "chat_template_kwargs"
                )
        for name in ("tools", "documents"):
            if name in variables and name not in self.features.variables:
                raise InvalidParameterError(
                    f"{name} are not supported: the chat template does not read them", name
                )
        if any(message.get("tool_calls") for message in messages):
            self._check_reads_tool_calls()
        fitting = [self._fitting(message) for message in messages]
        return self.pool.render(self.source, {**given, **variables, "messages": fitting})

    @staticmethod
    def _check_hint(name: str, value: Any) -> None:
        """Raises:
        InvalidParameterError: the value asks for something, and the template does not read it.
        """
        allowed = _HINTS[name]
        if allowed is not None and value not in allowed:
            raise InvalidParameterError(
                f"{name}={value!r} is not supported: the chat template does not read {name}",
                name,
                "unsupported_parameter",
            )

    def _check_reads_tool_calls(self) -> None:
        if not self.features.reads_tool_calls:
            raise InvalidParameterError(
                "tool_calls are not supported: the model's chat template does not read them",
                "messages",
            )

    def _fitting(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message with a role that the template knows, and with content in the form that it
        reads: a string or parts, or None beside calls.

        OpenAI replaced the role `system` by `developer`. Many templates leave such messages out.
        The first templates of DeepSeek V3 and R1 leave out calls beside content that is not none.
        That of gpt-oss takes reasoning or content beside calls, and writes either as reasoning.
        """
        if message.get("role") == "developer" and not self.features.knows_developers:
            message = {**message, "role": "system"}
        if self.features.reads_thinking and message.get("reasoning_content"):
            message = {**message, "thinking": message["reasoning_content"]}
            if message.get("tool_calls"):
                return {**message, "content": ""}
        content = message.get("content")
        if not content and message.get("tool_calls") and self.features.tests_missing_content:
            return {**message, "content": None}
        if isinstance(content, list) and not self.features.reads_parts:
            return {**message, "content": "\n".join([part["text"] for part in content])}
        if isinstance(content, str) and not self.features.reads_strings:
            return {**message, "content": [{"type": "text", "text": content}]}
        return message


def read_chat_template(option: str) -> str:
    """Reads the value of `--chat-template`: a file, or the template itself in one line.

    Raises:
        ConfigurationError: it is neither.
    """
    try:
        return Path(option).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a null byte, or not UTF-8
        if "{" not in option:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise ConfigurationError(f"cannot read chat template {option}: {reason}") from None
    return option.replace("\\n", "\n")
