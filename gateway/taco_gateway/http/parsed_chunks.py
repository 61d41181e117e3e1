"""Deltas of a chat stream with reasoning and tool calls."""

from json.encoder import encode_basestring as quote

from taco_gateway.text.response.response_delta import CallDelta, ResponseDelta


def json_deltas(parsed: ResponseDelta, *, gives_reasoning: bool, has_old_names: bool) -> list[str]:
    """The JSON of each delta, in the order reasoning, content, calls; none is empty.

    Args:
        gives_reasoning: False: the client wants no reasoning.
        has_old_names: write `function_call` instead of `tool_calls`.
    """
    deltas: list[str] = []
    if parsed.reasoning and gives_reasoning:
        text = quote(parsed.reasoning)
        deltas.append(f'{{"reasoning_content":{text},"reasoning":{text}}}')
    if parsed.content:
        deltas.append(f'{{"content":{quote(parsed.content)}}}')
    deltas += [_function_call(call) if has_old_names else _tool_call(call) for call in parsed.calls]
    return deltas


def _tool_call(call: CallDelta) -> str:
    head = ""
    if call.id is not None:
        head = f',"id":{quote(call.id)},"type":"function"'
    return f'{{"tool_calls":[{{"index":{call.index}{head},"function":{_function(call)}}}]}}'


def _function_call(call: CallDelta) -> str:
    return f'{{"function_call":{_function(call)}}}'


def _function(call: CallDelta) -> str:
    name = "" if call.name is None else f'"name":{quote(call.name)},'
    return f'{{{name}"arguments":{quote(call.arguments)}}}'
