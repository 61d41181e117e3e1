"""Speed-up of speculative decoding by workload, drafter and batch size, beside plain decoding.

    python -m bench.engine.speculation [WORKLOAD ...] [--drafter NAME ...] [--batch-size N ...]
        [--pairs 6] [--max-tokens 128] [--quantization int8] [--served] [--save NAME]

Two engines in one process, one plain and one with the drafter, alternate. The runs of a pair are
adjacent and use the same prompts and seeds; only their ratio is used. Texts must be equal. With
`--served`, each engine is `taco_llm serve` in its own processes, used over HTTP.

Workloads: `replay` sends the same prompts again and again. `excerpts` asks the demo model questions
about excerpts that it has never seen. `questions` asks about its training data. `random` draws
tokens that never repeat.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench import record
from bench.interval import ratio_interval
from bench.peers.make_checkpoint import SHAPES, write_config
from bench.services.served_engine import ServedEngine
from taco_llm import LLM, SamplingParams
from taco_scheduler.state.counters import Counters

PROMPT_TOKENS = 64
MAX_TOKENS = 128
BATCH_SIZES = (1, 8, 32)

# The demo model's recipe, which generates the questions, is not an installed package.
sys.path.append(str(Path(__file__).parents[2] / "demo"))

Text = str | tuple[int, ...]
Prompts = list[dict[str, list[int]]] | list[list[dict[str, str]]]


@dataclass(frozen=True)
class Workload:
    """Attributes:
    prompts: of one batch: a number for it, and how many.
    num_prompts: of a turn, in batches one after the other; at least one batch.
    """

    model: str
    prompts: Callable[[int, int], Prompts]
    sampling: dict[str, Any]
    engine: dict[str, Any] = field(default_factory=dict)
    num_prompts: int = 1


def same_prompts(number: int, count: int) -> Prompts:
    return random_prompts(0, count)


def random_prompts(number: int, count: int) -> Prompts:
    rng = random.Random(number)
    return [
        {"prompt_token_ids": [rng.randrange(1000, 100_000) for _ in range(PROMPT_TOKENS)]}
        for _ in range(count)
    ]


def excerpts(number: int, count: int) -> Prompts:
    from recipe.excerpts import excerpt_material
    from recipe.questions import ConversationSampler, Knowledge

    sampler = ConversationSampler(Knowledge.load(), excerpt_material()[1], random.Random(number))
    return [[{"role": "user", "content": sampler.from_excerpt()[0].question}] for _ in range(count)]


def questions(number: int, count: int) -> Prompts:
    from recipe.excerpts import excerpt_material
    from recipe.questions import ConversationSampler, Knowledge

    sampler = ConversationSampler(Knowledge.load(), excerpt_material()[1], random.Random(number))
    return [[{"role": "user", "content": sampler.about_object()[0].question}] for _ in range(count)]


GREEDY = {"temperature": 0.0}
QWEN = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 2048}
# Steps take a millisecond: a second thread waits for a core more often than it helps.
DEMO = {"num_threads": 1}
WORKLOADS = {
    "replay": Workload("qwen2-0.5b", same_prompts, {**GREEDY, "ignore_eos": True}, QWEN),
    "random": Workload(
        "qwen2-0.5b",
        random_prompts,
        {"temperature": 1.0, "ignore_eos": True},
        QWEN,
    ),
    "excerpts": Workload("demo", excerpts, GREEDY, DEMO, 32),
    "questions": Workload("demo", questions, GREEDY, DEMO, 32),
}
# Drafters that need the demo model's vocabulary.
NEEDS_DEMO = {"draft model", "medusa", "eagle"}
DRAFTERS: dict[str, dict[str, Any]] = {
    "none": {},  # two plain engines: the effect of being the second one
    "lookahead": {"lookahead_cache_config_dir": "."},
    "ngram": {"speculative_model": "[ngram]", "ngram_prompt_lookup_max": 3},
    "draft model": {"speculative_model": "demo-draft"},
    "medusa": {"speculative_model": "demo-medusa"},
    "eagle": {"speculative_model": "demo-eagle"},
}


LIMITS: dict[str, Any] = {"num_gpu_blocks_override": 1200, "max_num_seqs": 32}


class Engine(ABC):
    """One of the two engines, with the results of its turns.

    Attributes:
        rates: tokens per second of each turn: of all tokens, and without the first of each answer.
        texts: tokens or texts of all answers of each turn.
    """

    def __init__(self, workload: Workload, max_tokens: int) -> None:
        self._workload = workload
        self._max_tokens = max_tokens
        self.forget()

    def run(self, turn: int, batch_size: int) -> None:
        """Runs a turn: some batches one after the other."""
        answers: list[tuple[Text, int]] = []
        seconds = decoding = 0.0
        for wave in range(max(1, self._workload.num_prompts // batch_size)):
            number = 100 * turn + wave
            prompts = self._workload.prompts(number, batch_size)
            sampling = [
                {
                    **self._workload.sampling,
                    "max_tokens": self._max_tokens,
                    "seed": 1000 * number + i,
                }
                for i in range(batch_size)
            ]
            started = time.perf_counter()
            found, decode_seconds = self.answer(prompts, sampling)
            seconds += time.perf_counter() - started
            decoding += decode_seconds
            answers += found
        num_decoded = sum(count - 1 for _, count in answers)
        num_tokens = sum(count for _, count in answers)
        self.rates.append((num_tokens / seconds, num_decoded / decoding))
        self.texts.append([text for text, _ in answers])

    def forget(self) -> None:
        self.rates: list[tuple[float, float]] = []
        self.texts: list[list[Text]] = []

    @abstractmethod
    def answer(
        self, prompts: Prompts, sampling: list[dict[str, Any]]
    ) -> tuple[list[tuple[Text, int]], float]:
        """Returns each answer with its number of tokens, and the sum of the seconds from the
        first to the last token of each.
        """

    @abstractmethod
    def drafts(self) -> tuple[int, int, int]:
        """Returns decode steps of sequences, verified and accepted drafts, since the start."""

    @abstractmethod
    def close(self) -> None: ...


class LocalEngine(Engine):
    """An engine in this process."""

    def __init__(
        self, workload: Workload, model: str, arguments: dict[str, Any], max_tokens: int
    ) -> None:
        super().__init__(workload, max_tokens)
        self._llm = LLM(model, **LIMITS, **workload.engine, **arguments)

    @property
    def _counters(self) -> Counters:
        return self._llm._engine._scheduler.engine.counters

    def answer(
        self, prompts: Prompts, sampling: list[dict[str, Any]]
    ) -> tuple[list[tuple[Text, int]], float]:
        before = self._counters.decode_seconds.sum
        params = [SamplingParams(**each) for each in sampling]
        generate: Any = self._llm.generate if isinstance(prompts[0], dict) else self._llm.chat
        outputs = generate(prompts, params, use_tqdm=False)
        answers = [tuple(output.outputs[0].token_ids) for output in outputs]
        decoding = self._counters.decode_seconds.sum - before
        return [(answer, len(answer)) for answer in answers], decoding

    def drafts(self) -> tuple[int, int, int]:
        counters = self._counters.speculation
        return counters.num_iterations, counters.draft_tokens, counters.accepted_tokens

    def close(self) -> None:
        self._llm.close()


class RemoteEngine(Engine):
    """An engine behind HTTP."""

    def __init__(
        self, workload: Workload, model: str, arguments: dict[str, Any], max_tokens: int
    ) -> None:
        super().__init__(workload, max_tokens)
        self._served = ServedEngine(model, {**LIMITS, **workload.engine, **arguments})

    def answer(
        self, prompts: Prompts, sampling: list[dict[str, Any]]
    ) -> tuple[list[tuple[Text, int]], float]:
        answers = self._served.answer(
            [
                {"prompt": prompt["prompt_token_ids"], **params}
                if isinstance(prompt, dict)
                else {"messages": prompt, **params}
                for prompt, params in zip(prompts, sampling, strict=True)
            ]
        )
        decoding = sum(answer.decode_seconds for answer in answers)
        return [(answer.text, answer.num_tokens) for answer in answers], decoding

    def drafts(self) -> tuple[int, int, int]:
        return self._served.drafts()

    def close(self) -> None:
        self._served.close()


@contextmanager
def model_directory(name: str) -> Iterator[str]:
    if name != "qwen2-0.5b":
        yield name
        return
    with tempfile.TemporaryDirectory() as directory:
        write_config(Path(directory), SHAPES["qwen2-0.5b"])
        yield directory


def compare(
    workload: Workload, drafter: str, args: argparse.Namespace, common: dict[str, Any]
) -> dict[str, Any]:
    measured: dict[int, list[Turns]] = {}
    with model_directory(workload.model) as model, tempfile.TemporaryDirectory() as empty:
        arguments = dict(DRAFTERS[drafter])
        if "lookahead_cache_config_dir" in arguments:
            arguments["lookahead_cache_config_dir"] = empty
        # The second engine of a process gets worse memory, so each is second in half of the pairs.
        for plain_is_first in (True, False):
            extras = [common, {**arguments, **common}]
            kind = RemoteEngine if args.served else LocalEngine
            made = [
                kind(workload, model, extra, args.max_tokens)
                for extra in (extras if plain_is_first else extras[::-1])
            ]
            plain, speculating = made if plain_is_first else made[::-1]
            try:
                for batch_size in args.batch_size:
                    found = take_turns(plain, speculating, batch_size, args.pairs // 2)
                    measured.setdefault(batch_size, []).append(found)
            finally:
                for engine in made:
                    engine.close()
    figures = {str(batch_size): summary(halves) for batch_size, halves in measured.items()}
    for batch_size, row in figures.items():
        print(f"  batch {batch_size}: {row}", flush=True)
    return figures


@dataclass(frozen=True)
class Turns:
    """Attributes:
    plain, speculating: tokens a second of each turn, and of decoding alone.
    drafts: iterations, verified and accepted drafts.
    """

    plain: list[tuple[float, float]]
    speculating: list[tuple[float, float]]
    drafts: tuple[int, int, int]


def take_turns(plain: Engine, speculating: Engine, batch_size: int, num_pairs: int) -> Turns:
    """Runs pairs in alternating order, after one that is not counted."""
    for engine in (plain, speculating):
        engine.forget()
        engine.run(10_000 + batch_size, batch_size)
        engine.forget()
    before = speculating.drafts()
    for turn in range(num_pairs):
        order = (plain, speculating) if turn % 2 else (speculating, plain)
        for engine in order:
            engine.run(100 * batch_size + turn, batch_size)
    if plain.texts != speculating.texts:
        raise AssertionError("speculation changed the text")
    after = speculating.drafts()
    iterations, drafts, accepted = (now - then for now, then in zip(after, before, strict=True))
    return Turns(plain.rates, speculating.rates, (iterations, drafts, accepted))


def summary(halves: list[Turns]) -> dict[str, Any]:
    plain = [rates for half in halves for rates in half.plain]
    speculating = [rates for half in halves for rates in half.speculating]
    num_iterations, num_drafts, num_accepted = (
        sum(counts) for counts in zip(*(half.drafts for half in halves), strict=True)
    )
    gain, decode_gain = (
        ratio_interval([ours[i] for ours in speculating], [theirs[i] for theirs in plain])
        for i in range(2)
    )
    return {
        "speedup": round(gain.ratio, 3),
        "interval": [round(gain.low, 3), round(gain.high, 3)],
        "decode_speedup": round(decode_gain.ratio, 3),
        "decode_interval": [round(decode_gain.low, 3), round(decode_gain.high, 3)],
        "plain_tokens_per_s": round(median(rate for rate, _ in plain), 1),
        "tokens_per_s": round(median(rate for rate, _ in speculating), 1),
        "accepted_per_step": round(num_accepted / max(1, num_iterations), 3),
        "verified_per_step": round(num_drafts / max(1, num_iterations), 3),
        "acceptance_rate": round(num_accepted / max(1, num_drafts), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--drafter", nargs="+", default=list(DRAFTERS)[1:], choices=DRAFTERS)
    parser.add_argument("--batch-size", nargs="+", type=int, default=list(BATCH_SIZES))
    parser.add_argument("--pairs", type=int, default=6, help="number of pairs, even")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="tokens per answer")
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--served", action="store_true", help="measure servers over HTTP")
    parser.add_argument("--save", metavar="NAME", help="keep the figures in results/NAME.ISA.json")
    args = parser.parse_args()
    common = {"quantization": args.quantization} if args.quantization else {}
    figures: dict[str, Any] = {}
    for name in args.workloads:
        workload = WORKLOADS[name]
        for drafter in args.drafter:
            if drafter in NEEDS_DEMO and workload.model != "demo":
                continue
            label = f"{name}, over HTTP" if args.served else name
            print(f"{label}, {drafter}", flush=True)
            figures.setdefault(label, {})[drafter] = compare(workload, drafter, args, common)
    if args.save:
        print(record.save_by_isa(args.save, figures))


if __name__ == "__main__":
    main()
