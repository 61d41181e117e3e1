"""Parses answers of an OpenAI-compatible server: JSON documents and event streams."""

import json
from typing import Any

from taco_llm.bench.timeline import Timeline

MAX_ERROR_CHARACTERS = 300


class WholeAnswer:
    """Collects an answer that is one JSON document."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()

    def begin(self, status: int) -> None:
        self.status = status

    def feed(self, body: bytes, now: float) -> None:
        self.body += body

    @property
    def error(self) -> str | None:
        """The server's error message; None if the request succeeded."""
        if self.status == 200:
            return None
        if not self.status:
            return "the server closed the connection without an answer"
        return f"HTTP {self.status}: {_message(bytes(self.body))}"


class StreamedAnswer(WholeAnswer):
    """Parses server-sent events into a timeline: arrival times of chunks, text, usage.

    A chunk is one event with a choice. It carries tokens unless it only opens the answer (a role)
    or ends it (an empty text with a finish reason).
    """

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline
        self._rest = b""
        self._texts: list[str] = []
        self._is_stream = False
        self._finished = False
        self._failure: str | None = None

    def feed(self, body: bytes, now: float) -> None:
        if self.status != 200:
            self.body += body
            return
        lines = (self._rest + body).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def error(self) -> str | None:
        if (error := super().error) is not None:
            return error
        if self._failure is not None:
            return self._failure
        if not self._is_stream:
            return "the answer is not an event stream"
        return None if self._finished else "the stream broke off"

    def _event(self, data: bytes, now: float) -> None:
        self._is_stream = True
        if data == b"[DONE]":
            self._finished = True
            return
        try:
            event = json.loads(data.decode())
            self._read(event, now)
        except (ValueError, AttributeError, TypeError, LookupError):
            shown = data[:MAX_ERROR_CHARACTERS].decode(errors="replace")
            self._failure = f"an event of the stream is not an OpenAI chunk: {shown}"

    def _read(self, event: dict[str, Any], now: float) -> None:
        if event.get("error"):
            self._failure = _shorten(_named(event) or str(event["error"]))
            return
        if usage := event.get("usage"):
            self._timeline.prompt_tokens = usage["prompt_tokens"]
            self._timeline.output_tokens = usage["completion_tokens"]
        if not (choices := event.get("choices")):
            return
        choice = choices[0]
        timeline = self._timeline
        timeline.end = now
        delta = choice.get("delta")
        if delta is None:
            text = choice.get("text") or ""
            opens = False
        else:
            text = _delta_text(delta)
            opens = "role" in delta
        ends = choice.get("finish_reason") is not None
        self._finished = self._finished or ends
        if text or not (opens or ends):
            timeline.chunks.append(now)
            self._texts.append(text)


def _delta_text(delta: dict[str, Any]) -> str:
    """The text of content, reasoning or fragments of tool calls, which all consist of tokens."""
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        text += (function.get("name") or "") + (function.get("arguments") or "")
    return str(text)


def _message(body: bytes) -> str:
    """The message in the body of an error, in any of the usual forms."""
    text = body.decode(errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        return _shorten(text)
    return _shorten((_named(value) if isinstance(value, dict) else None) or text)


def _named(value: dict[str, Any]) -> str | None:
    error = value.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    for message in (error, value.get("message"), value.get("detail")):
        if isinstance(message, str) and message:
            return message
    return None


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_ERROR_CHARACTERS else line[:MAX_ERROR_CHARACTERS] + "…"
