"""Stats log: one log line every few seconds with throughput and load, while steps run."""

import asyncio
import logging
import time
from dataclasses import dataclass

from taco_scheduler.core.engine import Engine

INTERVAL_SECONDS = 5.0
logger = logging.getLogger("taco.scheduler")


@dataclass(frozen=True, slots=True)
class _Totals:
    time: float
    num_steps: int
    prompt_tokens: int
    generation_tokens: int


async def log_stats(engine: Engine) -> None:
    """Runs until cancelled."""
    last = _totals(engine)
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        now = _totals(engine)
        if now.num_steps > last.num_steps:
            logger.info("%s", _line(engine, last, now))
        last = now


def _totals(engine: Engine) -> _Totals:
    counters = engine.counters
    return _Totals(
        time.monotonic(), counters.num_steps, counters.prompt_tokens, counters.generation_tokens
    )


def _line(engine: Engine, last: _Totals, now: _Totals) -> str:
    seconds = now.time - last.time
    queries = engine.counters.prefix_cache_queries
    hit_rate = engine.counters.prefix_cache_hits / queries if queries else 0.0
    return (
        f"Running: {engine.num_running}, Waiting: {engine.num_waiting}, "
        f"prompt: {(now.prompt_tokens - last.prompt_tokens) / seconds:.1f} tok/s, "
        f"generation: {(now.generation_tokens - last.generation_tokens) / seconds:.1f} tok/s, "
        f"KV usage: {engine.kv_usage:.1%}, prefix hit rate: {hit_rate:.1%}"
    )
