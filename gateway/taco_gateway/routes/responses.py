"""`POST /v1/responses`, OpenAI's Responses API without stored responses."""

from contextlib import aclosing
from time import perf_counter

from fastapi import APIRouter, Request
from fastapi.responses import Response

from taco_gateway.api_errors import ApiError
from taco_gateway.gateway import gateway_of, key_of
from taco_gateway.http.response_events import ResponseEventWriter
from taco_gateway.protocol.logprob_text import LogprobWriter, WrittenAnswer
from taco_gateway.protocol.request_schemas import RESPONSES
from taco_gateway.protocol.responses_api import response_object
from taco_gateway.protocol.responses_api.item_objects import whole_object
from taco_gateway.protocol.responses_api.output_items import OutputBuilder
from taco_gateway.protocol.responses_api.response_head import response_head
from taco_gateway.routes.chat_generation import generate_chat
from taco_gateway.text_updates import Updates
from taco_gateway.usage_and_latency import RequestStats

_SUMMARY = "Not found: responses are not stored"

router = APIRouter()


@router.post("/v1/responses")
async def create_response(request: Request) -> Response:
    arrival = perf_counter()
    gateway = gateway_of(request)
    body = await gateway.read_request(request, RESPONSES)
    key = key_of(request)
    gateway.check_model(body.model, key)
    response_id = f"resp_{request.state.request_id}"
    with body.chat.errors_with_client_names():
        generation = await generate_chat(gateway, body.chat, key, response_id)
    model = body.model or gateway.model_names[0]
    head = response_head(body, generation.params, response_id, model)
    builder = OutputBuilder(gives_reasoning=body.include_reasoning)
    formatter = gateway.logprob_formatter(body.chat)
    stats = gateway.request_stats(request, arrival, body.model, 1)
    if body.stream:
        writer = ResponseEventWriter(head, builder, formatter)
        return gateway.event_stream(writer.frames(generation.updates, stats), writer.failed)
    work = _whole(head, builder, LogprobWriter(formatter), generation.updates, stats)
    return await gateway.answer(request, work)


@router.get("/v1/responses/{response_id}", summary=_SUMMARY)
@router.delete("/v1/responses/{response_id}", summary=_SUMMARY)
@router.post("/v1/responses/{response_id}/cancel", summary=_SUMMARY)
@router.get("/v1/responses/{response_id}/input_items", summary=_SUMMARY)
async def stored_response(response_id: str) -> Response:
    """Rejects requests for an earlier response.

    Raises:
        ApiError: 404, always.
    """
    raise ApiError(
        404,
        f"The response {response_id[:80]!r} does not exist: this server stores no responses. Send "
        "the items of the conversation as input of POST /v1/responses.",
        param="response_id",
    )


async def _whole(
    head: response_object.Response,
    builder: OutputBuilder,
    writer: LogprobWriter,
    updates: Updates,
    stats: RequestStats,
) -> WrittenAnswer:
    """The response with everything that was generated."""
    finish_reason: str | None = None
    async with aclosing(updates):
        with stats:
            async for update in updates:
                builder.add(update)
                stats.add(update)
                finish_reason = update.finish_reason or finish_reason
    response = head.ended(finish_reason, stats.usage())
    builder.end(is_complete=response.status == "completed")
    output = [await whole_object(item, writer) for item in builder.items]
    return WrittenAnswer(response.model_copy(update={"output": output}), writer.texts)
