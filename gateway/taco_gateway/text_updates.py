"""From updates of single sequences to choices: merging prompts, counting, gathering answers."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from taco_gateway.metrics import GatewayMetrics
from taco_gateway.protocol.responses import PromptTokensDetails, Usage
from taco_gateway.request_log import RequestLog
from taco_gateway.text.text_engine import TextUpdate, TokenLogprob

Updates = AsyncGenerator[TextUpdate, None]


@dataclass(slots=True)
class Choice:
    """One sequence, as far as it has come."""

    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "abort"
    stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add(self, update: TextUpdate) -> None:
        self.pieces.append(update.text)
        self.token_ids.extend(update.token_ids)
        self.logprobs.extend(update.logprobs or ())
        if update.finish_reason is not None:
            self.finish_reason = update.finish_reason
            self.stop_reason = update.stop_reason


class UsageCounter:
    """Adds up the usage of a request: each of its prompts once, all of its sequences.

    Args:
        sequences_per_prompt: choices `k·n … k·n + n - 1` belong to prompt k.
    """

    def __init__(self, sequences_per_prompt: int) -> None:
        self._n = sequences_per_prompt
        self._prompt: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._completion: dict[int, int] = {}

    def add(self, update: TextUpdate) -> None:
        self._completion[update.index] = update.num_completion_tokens
        prompt = update.index // self._n
        self._prompt[prompt] = update.num_prompt_tokens
        # A sibling finds its own request's prompt cached; only what the first one found was there
        # before.
        cached = update.num_cached_tokens
        self._cached[prompt] = min(cached, self._cached.get(prompt, cached))

    def usage(self) -> Usage:
        prompt, completion = sum(self._prompt.values()), sum(self._completion.values())
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached.values())),
        )


async def timed(
    updates: Updates, metrics: GatewayMetrics, arrival: float, log: RequestLog | None = None
) -> Updates:
    """The same updates, seen by the metrics, and by the request's log, on their way."""
    timer = metrics.track_request(arrival)
    if log is not None:
        log.timer = timer
    try:
        async with aclosing(updates):
            async for update in updates:
                if update.queue_seconds is not None:
                    timer.queue_seconds = max(update.queue_seconds, timer.queue_seconds or 0.0)
                timer.update(update.index, len(update.token_ids), update.finish_reason)
                yield update
    finally:
        timer.close()


async def without_tokens(updates: Updates) -> Updates:
    """The same request as if no token had been asked for (the engine makes at least one)."""
    async with aclosing(updates):
        async for update in updates:
            update.text, update.token_ids, update.num_completion_tokens = "", [], 0
            update.logprobs = None if update.logprobs is None else []
            if update.finish_reason is not None:
                update.finish_reason, update.stop_reason = "length", None
            yield update


async def merge(prompts: Sequence[Updates], sequences_per_prompt: int) -> Updates:
    """The updates of several prompts as they come; sequence i of prompt k gets index k·n + i."""
    if len(prompts) == 1:
        async with aclosing(prompts[0]) as only:
            async for update in only:
                yield update
        return
    news: asyncio.Queue[TextUpdate | Exception | None] = asyncio.Queue(maxsize=2 * len(prompts))

    async def pump(first_index: int, updates: Updates) -> None:
        try:
            async for update in updates:
                update.index += first_index
                await news.put(update)
        except Exception as error:
            await news.put(error)
        else:
            await news.put(None)

    tasks = [
        asyncio.create_task(pump(k * sequences_per_prompt, updates))
        for k, updates in enumerate(prompts)
    ]
    try:
        num_running = len(tasks)
        while num_running:
            item = await news.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for updates in prompts:
            await updates.aclose()
