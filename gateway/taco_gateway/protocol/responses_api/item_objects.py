"""Turns output items into the objects of the response."""

from taco_gateway.protocol.logprob_text import LogprobWriter
from taco_gateway.protocol.responses_api.output_items import ItemKind, OutputItem
from taco_gateway.protocol.responses_api.response_object import (
    OutputFunctionCall,
    OutputMessage,
    OutputObject,
    OutputReasoning,
    OutputText,
    ReasoningText,
)


def empty_object(item: OutputItem) -> OutputObject:
    """The object of an item that has begun, without its content."""
    match item.kind:
        case ItemKind.REASONING:
            return OutputReasoning(id=item.id, status="in_progress", content=[])
        case ItemKind.MESSAGE:
            return OutputMessage(id=item.id, status="in_progress", content=[])
        case ItemKind.FUNCTION_CALL:
            return OutputFunctionCall(
                id=item.id, status="in_progress", call_id=item.call_id, name=item.name, arguments=""
            )


async def whole_object(item: OutputItem, writer: LogprobWriter) -> OutputObject:
    """The object of an item with its content.

    Args:
        writer: writes the log probabilities; see `WrittenAnswer`.
    """
    head = empty_object(item).model_copy(update={"status": item.status})
    if isinstance(head, OutputFunctionCall):
        return head.model_copy(update={"arguments": item.text})
    if isinstance(head, OutputReasoning):
        return head.model_copy(update={"content": [ReasoningText(text=item.text)]})
    part = OutputText(text=item.text, logprobs=await writer.entries(item.logprobs))
    return head.model_copy(update={"content": [part]})
