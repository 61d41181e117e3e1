"""Host work of a decode step in the offline engine: everything but the compiled kernels.

    python -m bench.engine.host_work [--shape qwen2-0.5b] [--batch-size 1 32] [--steps 100]
        [--no-kernels] [--served] [--stages] [--constrained] [--save]

All requests decode greedily. The model has random weights. Times are microseconds of a step; CPU
times do not count other load on the machine, but caches do: a step of a real shape leaves nothing
of the host's memory in them, which makes the same host work several times slower. `--no-kernels`
leaves the kernels out, for the host work with warm caches.

Beyond kernels: the step's duration minus that of its kernels. The threads: "model" runs the worker,
and its figure excludes its own share of the kernels; "event loop" runs the scheduler and the text
layer; "grammar-masks" exists for constrained requests only. Wake-ups: how often a thread slept.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import record
from bench.engine.stage_clock import StageClock
from bench.engine.stages import watch_stages
from bench.engine.threads import thread_figures
from bench.grammar.inputs import model_folder
from bench.grammar.schemas import endless_schema
from bench.model_flags import make_model_parser
from bench.peers.make_checkpoint import SHAPES, number_tokenizer, write_config, write_tokenizer
from taco_gateway.text.text_engine import TextEngine
from taco_kernels.cpu.program_structs import Logits
from taco_llm import AsyncLLMEngine, EngineArgs, SamplingParams, StructuredOutputsParams

PROMPT_TOKENS = 32
WARM_UP_STEPS = 20
KERNELS = ("taco_program_forward", "taco_program_logits", "taco_program_decode")


@dataclass
class Snapshot:
    """Figures at one moment: wall and CPU nanoseconds."""

    wall: int
    kernel_wall: int
    kernel_cpu: int
    threads: Counter[str]
    wake_ups: Counter[str]
    stages: Counter[str]


@dataclass
class KernelTimes:
    """Wraps the kernels' library: adds up the time in a step's kernels, and counts the steps.

    Attributes:
        at_step: called when that step begins, by its number.
    """

    lib: Any
    clock: StageClock
    runs_kernels: bool
    wall: int = 0
    cpu: int = 0
    num_steps: int = 0
    at_step: dict[int, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in KERNELS:
            setattr(self, name, self.clock.wrap(self._timed(getattr(self.lib, name)), "kernels"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, name)

    def _timed(self, kernel: Callable[..., None]) -> Callable[..., None]:
        is_forward = kernel is not self.lib.taco_program_logits
        logits_at = {"taco_program_logits": 2, "taco_program_decode": 3}.get(kernel.__name__)

        def run(*args: Any) -> None:
            if is_forward:
                self.num_steps += 1
                if (call := self.at_step.pop(self.num_steps, None)) is not None:
                    call()
            begun, begun_cpu = time.perf_counter_ns(), time.thread_time_ns()
            if self.runs_kernels:
                kernel(*args)
            elif logits_at is not None:
                _choose_token_0(args[logits_at])
            self.wall += time.perf_counter_ns() - begun
            self.cpu += time.thread_time_ns() - begun_cpu

        return run

    def snapshot(self) -> Snapshot:
        names = {threading.current_thread().name: "model", "MainThread": "event loop"}
        threads, wake_ups = thread_figures(names)
        stages = Counter(self.clock.nanoseconds)
        return Snapshot(time.perf_counter_ns(), self.wall, self.cpu, threads, wake_ups, stages)


def _choose_token_0(argument: Any) -> None:
    """`argument`: the struct's address, or a reference to it."""
    is_address = isinstance(argument, int)
    logits = Logits.from_address(argument) if is_address else argument._obj
    ctypes.memset(logits.token_ids, 0, 4 * logits.count)
    if logits.logprobs:
        ctypes.memset(logits.logprobs, 0, 4 * logits.count)


class Engine:
    def __init__(self, folder: Path, args: argparse.Namespace, clock: StageClock) -> None:
        self._random = random.Random(0)
        self._args = args
        # A step may give several tokens that a grammar forces.
        self._max_tokens = 4 * (WARM_UP_STEPS + args.steps)
        self._engine = AsyncLLMEngine.from_engine_args(
            EngineArgs(
                model=str(folder),
                load_format="dummy",
                max_model_len=PROMPT_TOKENS + self._max_tokens,
                max_num_seqs=max(args.batch_size),
                quantization=args.quantization,
                num_threads=args.num_threads,
                log_stats=False,
            )
        )
        runner = self._engine._worker._runner._model._runner  # type: ignore[attr-defined]
        self.kernels = KernelTimes(runner._kernels.lib, clock, not args.no_kernels)
        runner._kernels.lib = self.kernels

    async def measure(self, batch_size: int) -> dict[str, Any]:
        """Figures of the decode steps of `batch_size` requests, after some to warm up."""
        found: list[Snapshot] = []
        is_done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def take(is_last: bool) -> None:
            found.append(self.kernels.snapshot())
            if is_last:
                loop.call_soon_threadsafe(is_done.set)

        first = self.kernels.num_steps + WARM_UP_STEPS
        self.kernels.at_step[first] = lambda: take(False)
        self.kernels.at_step[first + self._args.steps] = lambda: take(True)
        asking = [asyncio.create_task(self._ask()) for _ in range(batch_size)]
        waiting = asyncio.create_task(is_done.wait())
        await asyncio.wait([waiting, *asking], return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, *asking):
            task.cancel()
        ended = await asyncio.gather(*asking, return_exceptions=True)
        if not is_done.is_set():
            raise RuntimeError(f"a request ended too early: {ended[0]!r}")
        before, after = found
        return _figures(before, after, self._args.steps)

    async def close(self) -> None:
        await self._engine.shutdown()

    async def _ask(self) -> None:
        prompt = self._random.choices(range(1000, 8000), k=PROMPT_TOKENS)
        constraint = None
        if self._args.constrained:
            constraint = StructuredOutputsParams(json=endless_schema())
        params = SamplingParams(
            temperature=0.0,
            max_tokens=self._max_tokens,
            ignore_eos=True,
            structured_outputs=constraint,
        )
        if self._args.served:
            async for _ in self._engine.generate({"prompt_token_ids": prompt}, params):
                pass
        else:
            await self._engine.complete({"prompt_token_ids": prompt}, params)


def _figures(before: Snapshot, after: Snapshot, num_steps: int) -> dict[str, Any]:
    def each(nanoseconds: float) -> float:
        return round(nanoseconds / num_steps / 1e3, 1)

    threads = after.threads - before.threads
    threads["model"] -= after.kernel_cpu - before.kernel_cpu
    wake_ups = after.wake_ups - before.wake_ups
    wall = after.wall - before.wall
    return {
        "step": each(wall),
        "beyond_kernels": each(wall - (after.kernel_wall - before.kernel_wall)),
        "cpu": {name: each(value) for name, value in sorted(threads.items()) if value >= 1e3},
        "wake_ups": {name: round(value / num_steps, 2) for name, value in wake_ups.items()},
        "stages": {name: each(value) for name, value in (after.stages - before.stages).items()},
    }


async def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    clock = StageClock()
    if args.stages:
        watch_stages(clock)
    engine = Engine(folder, args, clock)
    figures = {}
    for batch_size in args.batch_size:
        found = await engine.measure(batch_size)
        figures[str(batch_size)] = found
        show(batch_size, found)
    await engine.close()
    return figures


def show(batch_size: int, found: dict[str, Any]) -> None:
    print(
        f"{batch_size} sequences: step {found['step']:.0f} us, beyond kernels "
        f"{found['beyond_kernels']:.0f} us"
    )
    for name, value in found["cpu"].items():
        print(f"  cpu {name:24} {value:8.1f} us, {found['wake_ups'].get(name, 0):.2f} wake-ups")
    for name, value in found["stages"].items():
        if name != "kernels":
            print(f"      {name:28} {value:8.1f} us")


def main() -> None:
    parser = make_model_parser(__doc__)
    parser.add_argument(
        "--num-threads", type=int, help="threads of the kernels (default one a core)"
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        nargs="+",
        default=(1, 32),
        help="numbers of requests at once (default 1 32)",
    )
    parser.add_argument(
        "--steps", type=int, default=100, help="measured steps of each batch (default %(default)s)"
    )
    parser.add_argument("--no-kernels", action="store_true", help="without kernels: tokens are 0")
    parser.add_argument("--served", action="store_true", help="stream, without log probabilities")
    parser.add_argument("--stages", action="store_true", help="split the CPU time by stage")
    parser.add_argument("--constrained", action="store_true", help="answers follow a JSON schema")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("/tmp/taco-grammar"),
        help="folder of the model with --constrained (default %(default)s)",
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    record.check_savable(
        parser, args, "shape", "quantization", "num_threads", "no_kernels", "constrained"
    )
    if args.served:
        _leave_out_logprobs()
    with tempfile.TemporaryDirectory() as folder:
        if args.constrained:  # needs a vocabulary as real ones
            folder = str(model_folder(args.directory, args.shape))
        else:
            write_config(Path(folder), SHAPES[args.shape])
            vocab_size = SHAPES[args.shape]["vocab_size"]
            write_tokenizer(Path(folder), number_tokenizer(vocab_size))
        figures = asyncio.run(run(args, Path(folder)))
    if args.save:
        name = "host_work_served" if args.served else "host_work"
        print(record.save_by_isa(name, {"microseconds_per_step": figures}))


def _leave_out_logprobs() -> None:
    """Most served requests have none; offline ones have, for `cumulative_logprob`."""
    generate = TextEngine.generate

    def without(self: TextEngine, *args: Any, **kwargs: Any) -> Any:
        return generate(self, *args, **(kwargs | {"sum_logprobs": False}))

    TextEngine.generate = without  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
