"""Time per output token of constrained requests beside free ones, in alternating pairs.

    python -m bench.grammar.tpot [--pairs 8] [--batch-size N ...] [--quantization int8]
        [--num-threads N] [--temperature T] [--no-forced-tokens] [--save]

The engine runs in this process, with a model of Qwen2-0.5B's shape and random weights. Requests
have no log probabilities, as most served ones (offline, free ones have their sum). A round
sends 1 or 32 requests at once; its figure is the median time per output token. The text of a
constrained request follows a JSON schema, or an expression that forces no character.
"free, beside" are 16 free requests beside 16 constrained ones, over 16 beside 16 free ones; its
figure is the median time of a token, so that the prompts of requests that begin later do not count.
The goals are ratios of at most 1.03 for 1 request, and of at most 1.05 for 32.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from bench import record
from bench.grammar.inputs import model_folder
from bench.grammar.schemas import endless_schema
from bench.interval import ratio_interval
from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.text.text_engine import TextEngine
from taco_llm import AsyncLLMEngine, EngineArgs, SamplingParams, StructuredOutputsParams

PROMPT_TOKENS = 32
OUTPUT_TOKENS = {1: 96, 32: 40}
BATCH = 32
Constraint = StructuredOutputsParams | None
Array = npt.NDArray[np.float64]

_generate = TextEngine.generate


def _without_logprobs(
    self: TextEngine, *args: Any, **kwargs: Any
) -> AsyncGenerator[TextUpdate, None]:
    return _generate(self, *args, **(kwargs | {"sum_logprobs": False}))


class Engine:
    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self._random = random.Random(0)
        self._temperature: float = args.temperature
        options: dict[str, Any] = {"max_forced_tokens": 0} if args.no_forced_tokens else {}
        self._engine = AsyncLLMEngine.from_engine_args(
            EngineArgs(
                model=str(folder),
                load_format="dummy",
                max_model_len=512,
                max_num_seqs=BATCH,
                num_gpu_blocks_override=1024,
                quantization=args.quantization,
                num_threads=args.num_threads,
                log_stats=False,
                **options,
            )
        )

    async def times(self, constraints: list[Constraint]) -> list[Array]:
        """Sends one request for each constraint; milliseconds between the outputs of each."""
        count = OUTPUT_TOKENS[1 if len(constraints) == 1 else BATCH]
        return await asyncio.gather(*(self._ask(each, count) for each in constraints))

    async def close(self) -> None:
        await self._engine.shutdown()

    async def _ask(self, constraint: Constraint, num_tokens: int) -> Array:
        prompt = self._random.choices(range(1000, 100_000), k=PROMPT_TOKENS)
        params = SamplingParams(
            temperature=self._temperature,
            seed=self._random.randrange(2**31),
            max_tokens=num_tokens,
            ignore_eos=True,
            detokenize=False,
            structured_outputs=constraint,
        )
        times: list[float] = []
        async for output in self._engine.generate({"prompt_token_ids": prompt}, params):
            times.append(time.perf_counter())
            answer = output.outputs[0]
        if len(answer.token_ids) != num_tokens:
            raise RuntimeError(f"an answer has {len(answer.token_ids)} tokens, not {num_tokens}")
        return 1e3 * np.diff(times)


async def pairs(
    count: int,
    ours: Callable[[], Awaitable[float]],
    theirs: Callable[[], Awaitable[float]],
) -> dict[str, Any]:
    """Runs both in turns, after one round of each that warms the engine."""
    figures: tuple[list[float], list[float]] = ([], [])
    for number in range(count + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for which in order:
            value = await (ours, theirs)[which]()
            if number:
                figures[which].append(value)
    interval = ratio_interval(*figures)
    return {
        "constrained_ms": round(median(figures[0]), 3),
        "free_ms": round(median(figures[1]), 3),
        "ratio": [round(number, 3) for number in (interval.ratio, interval.low, interval.high)],
    }


async def run(args: argparse.Namespace) -> dict[str, Any]:
    engine = Engine(model_folder(args.directory), args)
    constraints = {
        "json": StructuredOutputsParams(json=endless_schema()),
        "expression": StructuredOutputsParams(regex="[a-zA-Z ,.]+"),
    }

    def per_token(constraint: Constraint, size: int) -> Callable[[], Awaitable[float]]:
        async def once() -> float:
            count = OUTPUT_TOKENS[size] - 1
            return median(
                float(gaps.sum()) / count for gaps in await engine.times([constraint] * size)
            )

        return once

    def gap_of_free(others: Constraint) -> Callable[[], Awaitable[float]]:
        free: list[Constraint] = [None] * (BATCH // 2)

        async def once() -> float:
            times = await engine.times([*free, *[others] * (BATCH // 2)])
            return float(np.median(np.concatenate(times[: BATCH // 2])))

        return once

    figures: dict[str, Any] = {}
    for name, constraint in constraints.items():
        for size in args.batch_size:
            figures[f"{name}, {size}"] = await pairs(
                args.pairs, per_token(constraint, size), per_token(None, size)
            )
            show(f"{name}, {size}", figures)
        if BATCH in args.batch_size:
            figures[f"free, beside {name}"] = await pairs(
                args.pairs, gap_of_free(constraint), gap_of_free(None)
            )
            show(f"free, beside {name}", figures)
    await engine.close()
    return figures


def show(name: str, figures: dict[str, Any]) -> None:
    found = figures[name]
    ratio, low, high = found["ratio"]
    print(
        f"{name:24} {found['constrained_ms']:8.2f} ms, free {found['free_ms']:8.2f} ms, "
        f"ratio {ratio:.3f} ({low:.3f} to {high:.3f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path("/tmp/taco-grammar"))
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, nargs="+", choices=(1, BATCH), default=(1, BATCH))
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--no-forced-tokens", action="store_true", help="one token a step")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    TextEngine.generate = _without_logprobs  # type: ignore[method-assign]
    figures = asyncio.run(run(args))
    if args.save:
        suffix = f"_{args.quantization}" if args.quantization else ""
        suffix += f"_t{args.temperature:g}" if args.temperature else ""
        suffix += "_unforced" if args.no_forced_tokens else ""
        print(record.save(f"grammar_tpot{suffix}", figures))


if __name__ == "__main__":
    main()
