"""The message of a whole chat answer."""

from taco_gateway.protocol.responses import CalledFunction, ChatResponseMessage, ToolCall
from taco_gateway.text.response.response_delta import whole_calls
from taco_gateway.text_updates import Choice


def answer_message(
    choice: Choice, role: str, echo: str, *, gives_reasoning: bool, has_old_names: bool
) -> ChatResponseMessage:
    """The message with everything that one sequence has generated.

    Args:
        echo: text of the last message, which begins the content.
        gives_reasoning: False: the client wants no reasoning.
        has_old_names: write `function_call` instead of `tool_calls`.
    """
    parsed = choice.parsed
    if parsed is None:
        return ChatResponseMessage(role=role, content=echo + choice.text)
    message = ChatResponseMessage(role=role, content=echo + parsed.content)
    if parsed.reasoning and gives_reasoning:
        message.reasoning_content = message.reasoning = parsed.reasoning
    calls = [
        ToolCall(
            id=call.id or "",
            function=CalledFunction(name=call.name or "", arguments=call.arguments),
        )
        for call in whole_calls(parsed.calls)
    ]
    if calls and has_old_names:
        message.function_call = calls[0].function
    elif calls:
        message.tool_calls = calls
    if calls and not message.content:
        message.content = None
    return message
