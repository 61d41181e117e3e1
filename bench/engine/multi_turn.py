"""Gain of KV tiers: conversations that return after their KV was evicted from the device.

    python -m bench.engine.multi_turn [reuse] [none] [restart] [--conversations 64] [--turns 6]
        [--quantization int8] [--save NAME]

Uses a model of Qwen2-0.5B's shape. The device's blocks hold a quarter of all conversations.
`reuse`: engines with and without a host tier alternate, one round of all conversations each; the
result is the ratio of their median times to first token, over the rounds after the first.
`none`: new prompts, so nothing is reused; the result is the ratio of the times of a round.
`restart`: the same conversations again by an engine that was restarted over the disk tier, beside
one that starts cold.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench import record
from bench.interval import Interval, ratio_interval
from bench.peers.make_checkpoint import SHAPES, write_config
from taco_llm import AsyncLLMEngine, EngineArgs, SamplingParams

USER_TOKENS = 64  # tokens that a turn adds to its conversation
ANSWER_TOKENS = 8
BLOCK_SIZE = 16
NUM_AT_ONCE = 4
POOL_SHARE = 0.25
SCENARIOS = ("reuse", "none", "restart")

Prompts = list[list[int]]


def conversations(count: int, num_turns: int, seed: int) -> list[Prompts]:
    """Returns the prompts of each round: every prompt is its conversation so far."""
    rng = random.Random(seed)
    texts: Prompts = [[] for _ in range(count)]
    rounds = []
    for _ in range(num_turns):
        texts = [text + rng.choices(range(1000, 100_000), k=USER_TOKENS) for text in texts]
        rounds.append(texts)
    return rounds


class Engine:
    """An engine that serves a few clients at a time."""

    def __init__(self, model: str, num_blocks: int, args: argparse.Namespace, **tiers: Any) -> None:
        self._engine = AsyncLLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                load_format="dummy",
                skip_tokenizer_init=True,
                max_model_len=longest(args),
                max_num_seqs=NUM_AT_ONCE,
                num_gpu_blocks_override=num_blocks,
                quantization=args.quantization,
                log_stats=False,
                **tiers,
            )
        )

    async def run(self, prompts: Prompts) -> list[float]:
        """Returns the seconds to first token of each prompt."""
        places = asyncio.Semaphore(NUM_AT_ONCE)
        return await asyncio.gather(*(self._ask(prompt, places) for prompt in prompts))

    async def _ask(self, prompt: list[int], places: asyncio.Semaphore) -> float:
        sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        first = 0.0
        async with places:
            started = time.perf_counter()
            async for _ in self._engine.generate({"prompt_token_ids": prompt}, sampling):
                first = first or time.perf_counter() - started
        return first

    async def close(self) -> None:
        await self._engine.shutdown()


async def take_turns(engines: list[Engine], rounds: list[Prompts]) -> list[list[list[float]]]:
    """Returns by engine the seconds of each round's prompts; the order alternates."""
    found: list[list[list[float]]] = [[], []]
    for number, prompts in enumerate(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append(await engines[which].run(prompts))
    return found


async def reuse(model: str, num_blocks: int, args: argparse.Namespace) -> dict[str, Any]:
    rounds = conversations(args.conversations, args.turns, seed=1)
    engines = [Engine(model, num_blocks, args), Engine(model, num_blocks, args, **host_tier())]
    plain, tiered = await take_turns(engines, rounds)
    for engine in engines:
        await engine.close()
    later = range(1, args.turns)  # in the first round nothing can be reused
    return {
        "ttft_ms": milliseconds([s for number in later for s in tiered[number]]),
        "plain_ttft_ms": milliseconds([s for number in later for s in plain[number]]),
        "ratio": rounded(
            ratio_interval(
                [median(tiered[number]) for number in later],
                [median(plain[number]) for number in later],
            )
        ),
    }


async def nothing_reused(model: str, num_blocks: int, args: argparse.Namespace) -> dict[str, Any]:
    engines = [Engine(model, num_blocks, args), Engine(model, num_blocks, args, **host_tier())]
    rng = random.Random(2)
    seconds: list[list[float]] = [[], []]
    length = USER_TOKENS * args.turns // 2
    for number in range(1 + args.pairs):
        for which in (0, 1) if number % 2 else (1, 0):
            prompts = [rng.choices(range(1000, 100_000), k=length) for _ in range(16)]
            started = time.perf_counter()
            await engines[which].run(prompts)
            seconds[which].append(time.perf_counter() - started)
    for engine in engines:
        await engine.close()
    # The first round only fills the device.
    return {"ratio": rounded(ratio_interval(seconds[1][1:], seconds[0][1:]))}


async def restart(model: str, num_blocks: int, args: argparse.Namespace) -> dict[str, Any]:
    """Runs every conversation once more: half of them first on the warm engine, half first on
    the cold.
    """
    rounds = conversations(args.conversations, args.turns, seed=3)
    directory = tempfile.mkdtemp()
    try:
        tiers = {**host_tier(), "kv_disk_path": directory, "kv_disk_space": 4.0}
        first = Engine(model, num_blocks, args, **tiers)
        for prompts in rounds:
            await first.run(prompts)
        await first.close()
        engines = [Engine(model, num_blocks, args), Engine(model, num_blocks, args, **tiers)]
        parts = [rounds[-1][start::4] for start in range(4)]
        cold, warm = await take_turns(engines, parts)
        for engine in engines:
            await engine.close()
    finally:
        shutil.rmtree(directory)
    return {
        "ttft_ms": milliseconds([s for part in warm for s in part]),
        "cold_ttft_ms": milliseconds([s for part in cold for s in part]),
        "ratio": rounded(ratio_interval([median(p) for p in warm], [median(p) for p in cold])),
    }


def longest(args: argparse.Namespace) -> int:
    """Returns the tokens of a conversation's last prompt and answer."""
    return int(args.turns * USER_TOKENS + ANSWER_TOKENS)


def host_tier() -> dict[str, Any]:
    return {"enable_prefix_cache_offload": True, "swap_space": 2.0}


def milliseconds(seconds: list[float]) -> float:
    return round(1e3 * median(seconds), 1)


def rounded(interval: Interval) -> list[float]:
    return [round(value, 3) for value in (interval.ratio, interval.low, interval.high)]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    blocks_of_all = args.conversations * args.turns * USER_TOKENS // BLOCK_SIZE
    blocks_at_once = NUM_AT_ONCE * (longest(args) // BLOCK_SIZE + 2)
    num_blocks = max(int(POOL_SHARE * blocks_of_all), blocks_at_once)
    figures: dict[str, Any] = {}
    scenarios = {"reuse": reuse, "none": nothing_reused, "restart": restart}
    with tempfile.TemporaryDirectory() as model:
        write_config(Path(model), SHAPES["qwen2-0.5b"])
        for name in args.scenarios or SCENARIOS:
            figures[name] = await scenarios[name](model, num_blocks, args)
            print(name, figures[name], flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []])
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=6, help="rounds without reuse")
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--save", metavar="NAME", help="keep the figures in results/NAME.json")
    args = parser.parse_args()
    figures = asyncio.run(measure(args))
    if args.save:
        print(record.save(args.save, figures))


if __name__ == "__main__":
    main()
