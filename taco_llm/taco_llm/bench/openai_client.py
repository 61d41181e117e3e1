"""The benchmark's client of an OpenAI-compatible server."""

import asyncio
import json
from time import perf_counter
from typing import Any

import httptools

from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_llm.bench.answer import StreamedAnswer, WholeAnswer
from taco_llm.bench.http_exchange import Server
from taco_llm.bench.serve_args import BenchServeArgs
from taco_llm.bench.timeline import Timeline
from taco_llm.bench.workload import BenchRequest
from taco_proto.errors import ConfigurationError

LIST_SECONDS = 30.0


class OpenAIClient:
    """A client of one model on one server.

    Args:
        tokenizer: counts the tokens of answers without usage; None counts one token per chunk.
    """

    def __init__(
        self, server: Server, args: BenchServeArgs, model: str, tokenizer: Tokenizer | None
    ) -> None:
        self._server = server
        self._args = args
        self._model = model
        self._tokenizer = tokenizer
        self._headers = _headers(args)

    async def send(self, request: BenchRequest, origin: float) -> Timeline:
        """Sends one request and reads its answer. The timeline contains the error of a failure.

        Args:
            origin: the start of the benchmark's clock, in seconds of `perf_counter`.
        """
        timeline = Timeline(prompt_tokens=request.prompt_len)
        answer = StreamedAnswer(timeline)
        body = json.dumps(self._body(request)).encode()
        message = self._server.request("POST", self._args.endpoint, self._headers, body)
        timeline.start = perf_counter()
        try:
            async with asyncio.timeout(self._args.request_timeout):
                timeline.start = await self._server.exchange(message, answer)
            timeline.error = answer.error
        except TimeoutError:
            timeline.error = f"no complete answer within {self._args.request_timeout:g} s"
        except (OSError, httptools.HttpParserError) as error:
            timeline.error = f"the connection failed: {error or type(error).__name__}"
        timeline.text = answer.text
        if timeline.error is None and not timeline.output_tokens:
            timeline.output_tokens = self._count(timeline)
        _shift(timeline, origin)
        return timeline

    def _body(self, request: BenchRequest) -> dict[str, Any]:
        args = self._args
        body: dict[str, Any] = {"model": self._model}
        if args.is_chat:
            body["messages"] = [{"role": "user", "content": request.prompt}]
        else:
            body["prompt"] = request.prompt
        body |= {
            "max_tokens": request.output_len,
            "temperature": args.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if args.ignore_eos:
            body["ignore_eos"] = True
        body |= args.extra_body or {}
        return {name: value for name, value in body.items() if value is not None}

    def _count(self, timeline: Timeline) -> int:
        if self._tokenizer is None:
            return len(timeline.chunks)
        return len(self._tokenizer.encode(timeline.text, add_special_tokens=False))


async def first_model(server: Server, args: BenchServeArgs) -> str:
    """The first model that the server lists.

    Raises:
        ConfigurationError: the server lists no model.
    """
    answer = WholeAnswer()
    try:
        async with asyncio.timeout(LIST_SECONDS):
            await server.exchange(server.request("GET", "/v1/models", _headers(args)), answer)
        error = answer.error
    except TimeoutError:
        error = f"no answer within {LIST_SECONDS:g} s"
    except (OSError, httptools.HttpParserError) as failure:
        error = f"the connection failed: {failure or type(failure).__name__}"
    if error is None:
        try:
            return str(json.loads(answer.body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            error = "the list is empty"
    raise ConfigurationError(
        f"{server.url}/v1/models lists no model ({error}): give one with --model"
    )


def _headers(args: BenchServeArgs) -> dict[str, str]:
    headers = {"Accept": "text/event-stream, application/json"}
    if args.key is not None:
        headers["Authorization"] = f"Bearer {args.key}"
    return headers | dict(args.header)


def _shift(timeline: Timeline, origin: float) -> None:
    timeline.start -= origin
    timeline.end = (timeline.end or perf_counter()) - origin
    timeline.chunks = [moment - origin for moment in timeline.chunks]
