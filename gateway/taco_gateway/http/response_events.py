"""Server-sent events of `POST /v1/responses`."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from json.encoder import encode_basestring as quote  # JSON string, non-ASCII characters as they are

from pydantic import BaseModel

from taco_gateway.api_errors import ApiError
from taco_gateway.protocol.logprob_text import LogprobWriter, WrittenAnswer, entries_json, has_many
from taco_gateway.protocol.logprobs import LogprobFormatter
from taco_gateway.protocol.responses import Usage
from taco_gateway.protocol.responses_api.item_objects import empty_object, whole_object
from taco_gateway.protocol.responses_api.output_items import (
    Change,
    ChangeKind,
    ItemKind,
    OutputBuilder,
    OutputItem,
)
from taco_gateway.protocol.responses_api.response_object import (
    SERVER_ERROR,
    OutputFunctionCall,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    Response,
    ResponseError,
    TextWithLogprobs,
)
from taco_gateway.text_updates import Updates
from taco_gateway.usage_and_latency import RequestStats

# Names of the events of an item's text, by kind.
_TEXTS = {
    ItemKind.REASONING: "response.reasoning_text",
    ItemKind.MESSAGE: "response.output_text",
    ItemKind.FUNCTION_CALL: "response.function_call_arguments",
}
_EMPTY_PARTS = {
    ItemKind.REASONING: ReasoningText(text="").model_dump_json(),
    ItemKind.MESSAGE: OutputText(text="").model_dump_json(),
}
# OpenAI's codes of failed responses, by HTTP status.
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseEventWriter:
    """Writes the events of one response, with rising sequence numbers.

    Args:
        head: the response without output.
        builder: of the output.
        formatter: of log probabilities.
    """

    def __init__(self, head: Response, builder: OutputBuilder, formatter: LogprobFormatter) -> None:
        self._head = head
        self._builder = builder
        self._formatter = formatter
        self._num_events = 0
        self._written: list[str] = []  # the JSON of items that are complete

    async def frames(self, updates: Updates, stats: RequestStats) -> AsyncGenerator[bytes, None]:
        """Yields the frames of a stream as its updates come, and closes `updates`."""
        finish_reason: str | None = None
        with stats:
            async with aclosing(updates):
                async for update in updates:
                    stats.add(update)
                    finish_reason = update.finish_reason or finish_reason
                    changes = self._builder.add(update)
                    opening = self._opening()
                    if events := opening + await self._changes(changes):
                        yield events.encode()
        yield (await self._end(finish_reason, stats.usage())).encode()

    def failed(self, error: ApiError) -> bytes:
        """The last frames of a stream that fails."""
        events = self._opening()
        details = error.body["error"]
        code, param = details["code"] or details["type"], details["param"]
        events += self._event(
            "error",
            f'"code":{quote(code)},"message":{quote(error.message)},'
            f'"param":{"null" if param is None else quote(param)}',
        )
        code = _ERROR_CODES.get(error.status, SERVER_ERROR)
        failure = {
            "status": "failed",
            "error": ResponseError(code=code, message=error.message),
        }
        return (events + self._response_event(self._head.model_copy(update=failure))).encode()

    def _opening(self) -> str:
        """The first events; empty after they were written."""
        if self._num_events:
            return ""
        response = self._head.model_dump_json()
        return "".join(
            self._event(f"response.{name}", f'"response":{response}')
            for name in ("created", "in_progress")
        )

    async def _changes(self, changes: Sequence[Change]) -> str:
        events: list[str] = []
        for change in changes:
            item, place = change.item, _place(change.item)
            match change.kind:
                case ChangeKind.ADDED:
                    events.append(self._added(item, place))
                case ChangeKind.EXTENDED:
                    events.append(await self._extended(change, place))
                case ChangeKind.DONE:
                    events.append(await self._done(item, place))
        return "".join(events)

    def _added(self, item: OutputItem, place: str) -> str:
        """The events of an item that begins, and of the one part of its content."""
        begun = empty_object(item).model_dump_json()
        events = self._event(
            "response.output_item.added", f'"output_index":{item.index},"item":{begun}'
        )
        if (part := _EMPTY_PARTS.get(item.kind)) is not None:
            events += self._event("response.content_part.added", f'{place},"part":{part}')
        return events

    async def _extended(self, change: Change, place: str) -> str:
        kind, rows = change.item.kind, change.logprobs
        fields = f'{place},"delta":{quote(change.text)}'
        if kind is ItemKind.MESSAGE and has_many(rows):
            fields += f',"logprobs":{await asyncio.to_thread(entries_json, self._formatter, rows)}'
        elif kind is ItemKind.MESSAGE:
            fields += f',"logprobs":{entries_json(self._formatter, rows)}'
        return self._event(f"{_TEXTS[kind]}.delta", fields)

    async def _done(self, item: OutputItem, place: str) -> str:
        """The events of an item that ends: its text, its part, and the item."""
        writer = LogprobWriter(self._formatter)

        def written(model: BaseModel) -> str:
            return b"".join(WrittenAnswer(model, writer.texts).pieces()).decode()

        done = f"{_TEXTS[item.kind]}.done"
        match whole := await whole_object(item, writer):
            case OutputFunctionCall():
                text = f'"name":{quote(whole.name)},"arguments":{quote(whole.arguments)}'
                events = self._event(done, f"{place},{text}")
            case OutputReasoning(content=[part]):
                events = self._event(done, f'{place},"text":{quote(part.text)}')
                events += self._part_done(place, written(part))
            case OutputMessage(content=[part]):
                text = written(TextWithLogprobs(text=part.text, logprobs=part.logprobs))[1:-1]
                events = self._event(done, f"{place},{text}")
                events += self._part_done(place, written(part))
        self._written.append(written(whole))
        fields = f'"output_index":{item.index},"item":{self._written[-1]}'
        return events + self._event("response.output_item.done", fields)

    def _part_done(self, place: str, part: str) -> str:
        return self._event("response.content_part.done", f'{place},"part":{part}')

    async def _end(self, finish_reason: str | None, usage: Usage) -> str:
        response = self._head.ended(finish_reason, usage)
        is_complete = response.status == "completed"
        events = self._opening() + await self._changes(self._builder.end(is_complete=is_complete))
        return events + self._response_event(response)

    def _response_event(self, response: Response) -> str:
        """The last event, which has the whole response."""
        head = response.model_dump_json().removesuffix("]}")
        whole = f"{head}{','.join(self._written)}]}}"
        return self._event(f"response.{response.status}", f'"response":{whole}')

    def _event(self, kind: str, fields: str) -> str:
        """Args:
        fields: members of the event's JSON object.
        """
        number = self._num_events
        self._num_events += 1
        return f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{number},{fields}}}\n\n'


def _place(item: OutputItem) -> str:
    """The members that say to which part of which item an event belongs."""
    place = f'"item_id":{quote(item.id)},"output_index":{item.index}'
    return place if item.kind is ItemKind.FUNCTION_CALL else f'{place},"content_index":0'
