"""Time of requests whose texts a grammar forces in part, with forced drafts and without.

    python -m bench.grammar.forced_tokens [--batch-size N ...] [--pairs 8] [--quantization int8]
        [--save NAME]

Two engines in one process alternate: one appends all forced tokens in a step, the other computes
one token a step (`max_forced_tokens=0`). The model has Qwen2-0.5B's shape, random
weights and the demo model's tokenizer. The runs of a pair are adjacent, use the same prompts and
seeds, and must give the same tokens; only their ratio is used.

Workloads: `call` is a tool call with fixed keys, few values and no whitespace. `date` has digits
between fixed texts. `record` has JSON's optional whitespace, so that few tokens are forced.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import record
from bench.interval import ratio_interval
from bench.peers.make_checkpoint import SHAPES, write_config
from taco_demo.locate import find_model
from taco_llm import LLM, SamplingParams, StructuredOutputsParams

PROMPT_TOKENS = 64
MAX_TOKENS = 256
BATCH_SIZES = (1, 8)

_CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "create_calendar_event"},
        "arguments": {
            "type": "object",
            "properties": {
                "number_of_participants": {"type": "integer", "minimum": 1, "maximum": 99},
                "is_recurring": {"type": "boolean"},
                "reminder_minutes_before": {"enum": [5, 10, 30, 60]},
                "visibility_of_the_event": {"enum": ["public", "private", "participants only"]},
            },
            "required": [
                "number_of_participants",
                "is_recurring",
                "reminder_minutes_before",
                "visibility_of_the_event",
            ],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
_RECORD = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 4},
    },
    "required": ["title", "year", "tags"],
    "additionalProperties": False,
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "call": {"json": _CALL, "disable_any_whitespace": True},
    "date": {"regex": r"The meeting begins on [0-9]{4}-[0-9]{2}-01 and ends at [0-2][0-9]:00\."},
    "record": {"json": _RECORD},
}


@dataclass
class Engine:
    """One of the two engines.

    Attributes:
        seconds: of each turn.
        tokens: of all answers of each turn.
        num_steps, num_forced: of all turns.
    """

    llm: LLM
    seconds: list[float] = field(default_factory=list)
    tokens: list[list[tuple[int, ...]]] = field(default_factory=list)
    num_steps: int = 0
    num_forced: int = 0

    def run(self, workload: str, turn: int, batch_size: int) -> None:
        """Run one batch."""
        rng = random.Random(turn)
        prompts = [
            {"prompt_token_ids": [rng.randrange(1000, 4000) for _ in range(PROMPT_TOKENS)]}
            for _ in range(batch_size)
        ]
        params = [
            SamplingParams(
                structured_outputs=StructuredOutputsParams(**WORKLOADS[workload]),
                max_tokens=MAX_TOKENS,
                temperature=1.0,
                seed=1000 * turn + row,
            )
            for row in range(batch_size)
        ]
        counters: Any = self.llm._engine._scheduler.engine.counters
        steps, forced = counters.num_steps, counters.speculation.accepted_tokens
        started = time.perf_counter()
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        self.seconds.append(time.perf_counter() - started)
        self.tokens.append([tuple(output.outputs[0].token_ids) for output in outputs])
        self.num_steps += counters.num_steps - steps
        self.num_forced += counters.speculation.accepted_tokens - forced


@contextmanager
def checkpoint() -> Iterator[str]:
    """The folder of a model without weights."""
    with tempfile.TemporaryDirectory() as directory:
        write_config(Path(directory), SHAPES["qwen2-0.5b"])
        demo = find_model("demo")
        assert demo is not None, "the package taco_demo is not installed"
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo / name, directory)
        yield directory


def make_engine(model: str, quantization: str | None, **arguments: Any) -> Engine:
    return Engine(
        LLM(
            model,
            load_format="dummy",
            max_model_len=2048,
            num_gpu_blocks_override=1200,
            max_num_seqs=32,
            quantization=quantization,
            **arguments,
        )
    )


def compare(model: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run all workloads and batch sizes; the second engine of a process gets worse memory, so each
    is second in half of the pairs.
    """
    halves: dict[tuple[str, int], list[tuple[Engine, Engine]]] = {}
    for plain_is_first in (True, False):
        made = [
            make_engine(model, args.quantization, **arguments)
            for arguments in ({"max_forced_tokens": 0}, {})[:: 1 if plain_is_first else -1]
        ]
        plain, forcing = made if plain_is_first else made[::-1]
        try:
            for workload in args.workloads:
                for batch_size in args.batch_size:
                    pair = take_turns(plain.llm, forcing.llm, workload, batch_size, args.pairs // 2)
                    halves.setdefault((workload, batch_size), []).append(pair)
        finally:
            for engine in made:
                engine.llm.close()
    figures: dict[str, Any] = {}
    for (workload, batch_size), pairs in halves.items():
        row = summary(pairs)
        print(f"{workload}, batch {batch_size}: {row}", flush=True)
        figures.setdefault(workload, {})[str(batch_size)] = row
    return figures


def take_turns(
    plain: LLM, forcing: LLM, workload: str, batch_size: int, num_pairs: int
) -> tuple[Engine, Engine]:
    """Run pairs in alternating order, after one that is not counted."""
    for llm in (plain, forcing):
        Engine(llm).run(workload, 10_000, batch_size)
    engines = Engine(plain), Engine(forcing)
    for turn in range(num_pairs):
        for engine in engines if turn % 2 else engines[::-1]:
            engine.run(workload, 100 * batch_size + turn, batch_size)
    if engines[0].tokens != engines[1].tokens:
        raise AssertionError("forced drafts changed the tokens")
    return engines


def summary(pairs: list[tuple[Engine, Engine]]) -> dict[str, Any]:
    plain, forcing = ([pair[which] for pair in pairs] for which in (0, 1))
    seconds = [[s for engine in side for s in engine.seconds] for side in (forcing, plain)]
    time_ratio = ratio_interval(*seconds)
    num_tokens = sum(len(answer) for engine in forcing for turn in engine.tokens for answer in turn)
    return {
        "time_ratio": round(time_ratio.ratio, 3),
        "interval": [round(time_ratio.low, 3), round(time_ratio.high, 3)],
        "forced_share": round(sum(engine.num_forced for engine in forcing) / num_tokens, 3),
        "plain_seconds": round(median(seconds[1]), 4),
        "seconds": round(median(seconds[0]), 4),
        "plain_steps": sum(engine.num_steps for engine in plain),
        "steps": sum(engine.num_steps for engine in forcing),
        "tokens": num_tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--batch-size", nargs="+", type=int, default=list(BATCH_SIZES))
    parser.add_argument("--pairs", type=int, default=8, help="number of pairs, even")
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--save", metavar="NAME", help="keep the figures in results/NAME.json")
    args = parser.parse_args()
    with checkpoint() as model:
        figures = compare(model, args)
    if args.save:
        print(record.save(args.save, figures))


if __name__ == "__main__":
    main()
