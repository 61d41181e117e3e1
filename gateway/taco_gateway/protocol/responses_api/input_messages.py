"""Turns the items of a request into the messages that chat templates read."""

from collections.abc import Sequence
from typing import Any

from taco_gateway.protocol.responses_api.input_items import (
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    Item,
    Part,
    ReasoningItem,
)
from taco_proto.errors import InvalidParameterError

_LEADING_ROLES = ("system", "developer")

Message = dict[str, Any]


def chat_messages(items: str | Sequence[Item], instructions: str | None) -> list[Message]:
    """The messages of a chat request that is the same conversation.

    Reasoning, text and calls of the model that follow each other are one message of the assistant.
    Instructions and the messages for the model at the beginning are one message, because many
    templates take one system message at most, and some lose others.

    Raises:
        InvalidParameterError: an item has the output of a call that no item before it makes.
    """
    if isinstance(items, str):
        items = [InputMessage(role="user", content=items)]
    num_leading = _num_leading(items)
    messages = _leading_message(instructions, items[:num_leading])
    builder = _MessageBuilder(messages)
    for index, item in enumerate(items[num_leading:], num_leading):
        builder.add(index, item)
    return builder.messages


def _num_leading(items: Sequence[Item]) -> int:
    """Number of messages for the model at the beginning."""
    count = 0
    for item in items:
        if not isinstance(item, InputMessage) or item.role not in _LEADING_ROLES:
            break
        count += 1
    return count


def _leading_message(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    messages = [_plain_message(item) for item in items if isinstance(item, InputMessage)]
    if instructions:
        role = messages[0]["role"] if messages else "system"
        messages.insert(0, {"role": role, "content": instructions})
    if len(messages) < 2:
        return messages
    merged = messages[0]
    merged["content"] = [part for message in messages for part in _parts(message)]
    return [merged]


def _parts(message: Message) -> list[dict[str, Any]]:
    """The content as parts; a mark of the message is a mark of its last part."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if (mark := message.pop("cache_control", None)) is not None and parts:
        parts[-1] = {"cache_control": mark, **parts[-1]}
    return parts


class _MessageBuilder:
    """Adds items to messages. Items of the model extend its last message where they fit."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self._names: dict[str, str] = {}  # of the called functions, by the id of the call

    def add(self, index: int, item: Item) -> None:
        """Args:
        index: place of the item, for errors.
        """
        match item:
            case ReasoningItem():
                self._add_reasoning(item.text)
            case FunctionCall():
                self._add_call(item)
            case FunctionCallOutput():
                self._add_output(index, item)
            case InputMessage(role="assistant"):
                self._add_text(_plain_message(item))
            case InputMessage():
                self.messages.append(_plain_message(item))

    def _add_reasoning(self, text: str) -> None:
        if not text:  # only encrypted content
            return
        message = self._assistant(without=("reasoning_content", "content", "tool_calls"))
        message["reasoning_content"] = text

    def _add_text(self, given: Message) -> None:
        self._assistant(without=("content",)).update(given)

    def _add_call(self, call: FunctionCall) -> None:
        self._names[call.call_id] = call.name
        function = {"name": call.name, "arguments": call.arguments}
        calls = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": call.call_id, "function": function})

    def _add_output(self, index: int, item: FunctionCallOutput) -> None:
        name = self._names.get(item.call_id)
        if name is None:
            raise InvalidParameterError(
                f"input[{index}].call_id: no function_call before this item has the call_id "
                f"{item.call_id[:80]!r}. This server stores no responses: send the items of "
                "earlier responses too.",
                f"input[{index}].call_id",
            )
        content = _content(item.output)
        message = {"role": "tool", "tool_call_id": item.call_id, "name": name, "content": content}
        self.messages.append(message)

    def _assistant(self, without: Sequence[str] = ()) -> Message:
        """The last message if it is the assistant's and lacks these fields, or else a new one."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or any(name in last for name in without):
            self.messages.append({"role": "assistant"})
        return self.messages[-1]


def _plain_message(item: InputMessage) -> Message:
    message: Message = {"role": item.role, "content": _content(item.content)}
    if item.cache_control is not None:
        message["cache_control"] = item.cache_control.model_dump()
    return message


def _content(content: str | list[Part]) -> str | list[dict[str, Any]]:
    """The content in the form of chat, which has no empty lists."""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        plain = part.model_dump()
        if part.cache_control is not None:
            plain["cache_control"] = part.cache_control.model_dump()
        parts.append(plain)
    return parts or ""
