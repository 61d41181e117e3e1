"""Streamed completions over HTTP, of which every token is kept."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from support.patience import PATIENCE_SECONDS

Body = Mapping[str, Any]


@dataclass(eq=False)
class Answer:
    """One stream.

    Attributes:
        error: why it failed; empty otherwise.
        times: when each chunk came, by `time.monotonic`.
        siblings: the request's other sequences by index, where `n` is above 1.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    error: str = ""
    times: list[float] = field(default_factory=list)
    siblings: dict[int, "Answer"] = field(default_factory=dict)

    @property
    def stall(self) -> float:
        """The longest pause between chunks; 0 with fewer than two."""
        return max((b - a for a, b in itertools.pairwise(self.times)), default=0.0)

    def add(self, event: str) -> None:
        chunk = json.loads(event)
        if "error" in chunk:
            self.error = f"{chunk['error']}"
            return
        (choice,) = chunk["choices"]
        self.add_choice(choice)

    def add_choice(self, choice: Mapping[str, Any]) -> None:
        if choice["index"] > 0:
            sibling = self.siblings.setdefault(choice["index"], Answer())
            sibling.add_choice({**choice, "index": 0})
            return
        self.text += choice["text"]
        names = choice["logprobs"]["tokens"] if choice["logprobs"] else []
        self.token_ids += [int(name.removeprefix("token_id:")) for name in names]
        self.finish_reason = choice["finish_reason"]
        self.times.append(time.monotonic())


class Streams:
    """Streams that run side by side, as a context: those that are left are cancelled at its end."""

    def __init__(self, url: str, bodies: Iterable[Body], uds: str | None = None) -> None:
        """`uds`: a Unix socket to connect to, whatever host the URL names."""
        self._url = f"{url}/v1/completions"
        self._uds = uds
        self._bodies = list(bodies)
        self.answers = [Answer() for _ in self._bodies]
        self._tasks: list[asyncio.Task[None]] = []
        self._chunk_arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        transport = httpx.AsyncHTTPTransport(
            uds=self._uds, limits=httpx.Limits(max_connections=None)
        )
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(None), transport=transport)
        self._tasks = [
            asyncio.create_task(self._run(body, answer))
            for body, answer in zip(self._bodies, self.answers, strict=True)
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def reach(self, num_tokens: int) -> None:
        """Waits until each stream has `num_tokens` tokens."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(len(answer.token_ids) < num_tokens for answer in self.answers):
                assert not any(answer.error for answer in self.answers)
                self._chunk_arrived.clear()
                await self._chunk_arrived.wait()

    async def finish(self) -> list[Answer]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*self._tasks)
        return self.answers

    async def _run(self, body: Body, answer: Answer) -> None:
        try:
            async with self._client.stream("POST", self._url, json=dict(body)) as response:
                if response.status_code != 200:
                    answer.error = f"{response.status_code}: {(await response.aread()).decode()}"
                    return
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        answer.add(line.removeprefix("data: "))
                        self._chunk_arrived.set()
        except httpx.HTTPError as error:
            answer.error = repr(error)
        finally:
            self._chunk_arrived.set()


async def ask_whole(url: str, body: Body) -> Answer:
    """The answer to a request that is not streamed."""
    answer = Answer()
    async with httpx.AsyncClient(timeout=httpx.Timeout(None)) as client:
        reply = await client.post(f"{url}/v1/completions", json={**body, "stream": False})
    if reply.status_code != 200:
        answer.error = f"{reply.status_code}: {reply.text}"
        return answer
    for choice in reply.json()["choices"]:
        answer.add_choice(choice)
    return answer


async def ask(url: str, bodies: Iterable[Body]) -> list[Answer]:
    async with Streams(url, bodies) as streams:
        return await streams.finish()


def assert_same(answers: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """No request was lost, no token is missing, repeated or another."""
    for answer, other in zip(answers, expected, strict=True):
        assert answer.error == ""
        assert answer.finish_reason == "length"
        assert answer.token_ids == other.token_ids
        assert answer.text == other.text
        indexes = sorted(answer.siblings)
        assert indexes == sorted(other.siblings)
        assert_same(
            [answer.siblings[index] for index in indexes],
            [other.siblings[index] for index in indexes],
        )
