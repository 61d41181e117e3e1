"""Cost of `CompletionOutput.cumulative_logprob` in offline generation.

    python -m bench.engine.cumulative_logprob MODEL [--quantization int8] [--batch-sizes 1 32]
        [--pairs 5] [--save]

Runs the same requests alternately with and without the sum of log probabilities, in one process.
CPU time is that of the whole process; on a busy machine it is steadier than elapsed time.
bench/peers/make_checkpoint.py creates a checkpoint of random weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench import record
from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.text.text_engine import TextEngine
from taco_llm import LLM, SamplingParams

PROMPT_LEN = 32
TEMPERATURES = {"greedy": 0.0, "temperature 0.8": 0.8}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    llm = LLM(
        args.model, quantization=args.quantization, max_model_len=512, num_gpu_blocks_override=1024
    )
    figures: dict[str, dict[str, float]] = {}
    print(f"{'':28} {'without, ms':>12} {'with, ms':>10} {'CPU':>8} {'elapsed':>8}")
    for count in args.batch_sizes:
        for name, temperature in TEMPERATURES.items():
            params = SamplingParams(
                temperature=temperature, max_tokens=args.max_tokens, ignore_eos=True, seed=1
            )
            figures[f"{name}, batch {count}"] = compare(llm, count, params, args.pairs)
            report(f"{name}, batch {count}", figures[f"{name}, batch {count}"])
    if args.save:
        suffix = f"_{args.quantization}" if args.quantization else ""
        name = f"cumulative_logprob_{Path(args.model).name}{suffix}"
        record.save(name, {"pairs": args.pairs, "steps": figures})


def compare(llm: LLM, count: int, params: SamplingParams, pairs: int) -> dict[str, float]:
    """Returns CPU milliseconds per step without and with the sum, and the median ratio of the
    pairs.
    """
    run(llm, count, params)  # fills the prefix cache
    without: list[float] = []
    with_sum: list[float] = []
    cpu: list[float] = []
    elapsed: list[float] = []
    for pair in range(pairs):
        times: dict[bool, tuple[float, float]] = {}
        for sums in (False, True) if pair % 2 else (True, False):
            if sums:
                times[sums] = run(llm, count, params)
            else:
                with no_sums():
                    times[sums] = run(llm, count, params)
        without.append(times[False][0])
        with_sum.append(times[True][0])
        cpu.append(times[True][0] / times[False][0])
        elapsed.append(times[True][1] / times[False][1])
    steps = params.max_tokens or 1
    return {
        "cpu_ms_without": round(1e3 * median(without) / steps, 2),
        "cpu_ms_with": round(1e3 * median(with_sum) / steps, 2),
        "cpu_ratio": round(median(cpu), 4),
        "elapsed_ratio": round(median(elapsed), 4),
    }


def run(llm: LLM, count: int, params: SamplingParams) -> tuple[float, float]:
    """Returns CPU seconds and elapsed seconds."""
    prompts = [[100 + (7 * i + j) % 1000 for j in range(PROMPT_LEN)] for i in range(count)]
    cpu, elapsed = time.process_time(), time.perf_counter()
    llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
    return time.process_time() - cpu, time.perf_counter() - elapsed


@contextmanager
def no_sums() -> Iterator[None]:
    """Disables the request for log probabilities."""
    generate = TextEngine.generate

    def without(self: TextEngine, *args: Any, **kwargs: Any) -> AsyncGenerator[TextUpdate, None]:
        return generate(self, *args, **(kwargs | {"sum_logprobs": False}))

    TextEngine.generate = without  # type: ignore[method-assign]
    try:
        yield
    finally:
        TextEngine.generate = generate  # type: ignore[method-assign]


def report(name: str, figures: dict[str, float]) -> None:
    print(
        f"{name:28} {figures['cpu_ms_without']:12.2f} {figures['cpu_ms_with']:10.2f} "
        f"{100 * figures['cpu_ratio'] - 100:+7.1f}% {100 * figures['elapsed_ratio'] - 100:+7.1f}%",
        flush=True,
    )


if __name__ == "__main__":
    main()
