"""Reads the events of `POST /v1/responses` as a strict client does."""

import json
from typing import Any, get_args

from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from support.gateway_app import App

PATH = "/v1/responses"
# The classes of OpenAI's client, by the type of the event.
_EVENTS: dict[str, type[BaseModel]] = {
    get_args(event.model_fields["type"].annotation)[0]: event
    for event in get_args(get_args(ResponseStreamEvent)[0])
}
_TEXTS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
}


async def whole(app: App, **body: Any) -> dict[str, Any]:
    """The response object."""
    response = await app.http.post(PATH, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def events(app: App, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, which must be well-formed."""
    response = await app.http.post(PATH, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return read_events(response.text)


async def streamed(app: App, **body: Any) -> dict[str, Any]:
    """The response object that the events of a stream add up to."""
    return rebuilt(await events(app, **body))


def read_events(text: str) -> list[dict[str, Any]]:
    """The events of a whole stream. OpenAI's client must know each of them."""
    *frames, rest = text.split("\n\n")
    assert rest == ""
    found: list[dict[str, Any]] = []
    for frame in frames:
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(found)
        _EVENTS[event["type"]].model_validate(event)
        found.append(event)
    return found


def rebuilt(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that the events tell, in the order that clients rely on.

    It must be the response of the last event.
    """
    created, in_progress, *middle, last = found
    assert [created["type"], in_progress["type"]] == ["response.created", "response.in_progress"]
    assert created["response"] == in_progress["response"]
    assert created["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
    output: list[dict[str, Any]] = []
    reader = iter(middle)
    for event in reader:
        output.append(_read_item(event, reader, len(output)))
    response = last["response"]
    assert last["type"] == f"response.{response['status']}"
    assert response["output"] == output
    changing = {"status", "output", "usage", "completed_at", "incomplete_details", "error"}
    kept = {name: value for name, value in response.items() if name not in changing}
    assert kept == {n: v for n, v in created["response"].items() if n not in changing}
    return dict(response)


def _read_item(added: dict[str, Any], reader: Any, index: int) -> dict[str, Any]:
    """Reads the events of one item up to its last one."""
    assert added["type"] == "response.output_item.added"
    assert added["output_index"] == index
    item: dict[str, Any] = added["item"]
    assert item["status"] == "in_progress"
    place = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        assert item["arguments"] == ""
        item["arguments"], _ = _read_text(reader, place, "response.function_call_arguments")
    else:
        place["content_index"] = 0
        assert item["content"] == []
        item["content"] = [_read_part(reader, place)]
    done = next(reader)
    assert done["type"] == "response.output_item.done"
    assert done["output_index"] == index
    whole_item: dict[str, Any] = done["item"]
    assert whole_item["status"] in ("completed", "incomplete")
    assert whole_item == item | {"status": whole_item["status"]}
    return whole_item


def _read_part(reader: Any, place: dict[str, Any]) -> dict[str, Any]:
    added = next(reader)
    assert added["type"] == "response.content_part.added"
    assert added.items() >= place.items()
    part: dict[str, Any] = added["part"]
    assert part["text"] == ""
    name = f"response.{part['type']}"
    part["text"], logprobs = _read_text(reader, place, name)
    if part["type"] == "output_text":
        part["logprobs"] = logprobs
    done = next(reader)
    assert done["type"] == "response.content_part.done"
    assert done.items() >= place.items()
    assert done["part"] == part
    return part


def _read_text(reader: Any, place: dict[str, Any], name: str) -> tuple[str, list[Any]]:
    """The joined deltas, and the joined log probabilities."""
    text, logprobs = "", list[Any]()
    for event in reader:
        assert event.items() >= place.items()
        if event["type"] == f"{name}.done":
            assert event[_TEXTS[name]] == text
            assert event.get("logprobs", []) == logprobs
            return text, logprobs
        assert event["type"] == f"{name}.delta"
        assert event["delta"], "an empty delta"
        text += event["delta"]
        logprobs += event.get("logprobs", [])
    raise AssertionError("the text has no end")


def without_ids(value: Any) -> Any:
    """The JSON value without what differs between two requests: ids and times."""
    if isinstance(value, dict):
        differing = ("id", "call_id", "created_at", "completed_at")
        return {n: without_ids(item) for n, item in value.items() if n not in differing}
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    return value
