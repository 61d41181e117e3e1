"""The response object before its first token: what the client asked for."""

import time

from taco_gateway.protocol.responses_api.response_object import (
    ReasoningSettings,
    Response,
    TextSettings,
)
from taco_gateway.protocol.responses_api.response_request import ResponsesRequest
from taco_proto.sampling_params import SamplingParams


def response_head(
    request: ResponsesRequest, params: SamplingParams, response_id: str, model: str
) -> Response:
    """The response without output.

    Args:
        params: of the request, over the model's defaults.
        model: the name by which the client knows the model.
    """
    return Response(
        id=response_id,
        created_at=int(time.time()),
        status="in_progress",
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata,
        model=model,
        parallel_tool_calls=request.parallel_tool_calls,
        prompt_cache_key=request.prompt_cache_key or None,
        reasoning=ReasoningSettings(
            effort=request.reasoning.effort, summary=request.reasoning.summary
        ),
        safety_identifier=request.safety_identifier,
        temperature=params.temperature,
        text=TextSettings(
            format=request.text.format or {"type": "text"}, verbosity=request.text.verbosity
        ),
        tool_choice=request.tool_choice,
        tools=request.tools,
        top_logprobs=request.top_logprobs,
        top_p=params.top_p,
        user=request.user,
    )
