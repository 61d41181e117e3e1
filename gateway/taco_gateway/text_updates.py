"""Combines the updates of sequences: merges the prompts of a request, collects choices."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.text.output.token_logprobs import TokenLogprob
from taco_gateway.text.response.response_delta import ResponseDelta

Updates = AsyncGenerator[TextUpdate, None]


@dataclass(slots=True)
class Choice:
    """Everything that one sequence has generated so far."""

    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "abort"
    stop_reason: int | str | None = None
    parsed: ResponseDelta | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def add(self, update: TextUpdate) -> None:
        self.pieces.append(update.text)
        self.token_ids.extend(update.token_ids)
        self.logprobs.extend(update.logprobs or ())
        if update.parsed is not None:
            self.parsed = self.parsed or ResponseDelta()
            self.parsed.extend(update.parsed)
        if update.finish_reason is not None:
            self.finish_reason = update.finish_reason
            self.stop_reason = update.stop_reason


async def without_generated_tokens(updates: Updates) -> Updates:
    """Removes the generated token of a request with `max_tokens=0` (the engine makes one)."""
    async with aclosing(updates):
        async for update in updates:
            update.text, update.token_ids = "", []
            update.logprobs = None if update.logprobs is None else []
            if update.finish_reason is not None:
                update.finish_reason, update.stop_reason = "length", None
            yield update


def merged(prompts: Sequence[Updates], sequences_per_prompt: int) -> Updates:
    """Merges the updates of several prompts; sequence i of prompt k gets index k·n + i."""
    return prompts[0] if len(prompts) == 1 else _merged(prompts, sequences_per_prompt)


async def _merged(prompts: Sequence[Updates], sequences_per_prompt: int) -> Updates:
    queue: asyncio.Queue[TextUpdate | Exception | None] = asyncio.Queue(maxsize=2 * len(prompts))

    async def pump(first_index: int, updates: Updates) -> None:
        try:
            async for update in updates:
                update.index += first_index
                await queue.put(update)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [
        asyncio.create_task(pump(k * sequences_per_prompt, updates))
        for k, updates in enumerate(prompts)
    ]
    try:
        num_running = len(tasks)
        while num_running:
            item = await queue.get()
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
