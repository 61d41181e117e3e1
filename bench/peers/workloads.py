"""Workloads: prompts of token ids, exact numbers of output tokens, greedy sampling.

No tokenizer is in the timed path and the end-of-sequence token is ignored, so all engines
compute the same number of tokens. A workload is written `COUNTxPROMPT/OUTPUT`. A length is a
number or a range, and a prompt may begin with tokens that all requests share: `1x128/128`,
`64x16-512/16-256`, `32x512+32/32`. `json:32x128/128` makes the text of every answer follow a JSON
schema that no answer completes, without whitespace where the engine can forbid it.
`lora:32x128/128` gives each request one of the LoRA adapters in turn, on engines that have them.
"""

import random
import re
from dataclasses import dataclass
from typing import Any

from bench.grammar.schemas import records_schema

# Above the special tokens of every known vocabulary and below the smallest vocabulary.
LOW_ID, HIGH_ID = 16, 4000

# A record has more than 10 tokens.
JSON_RECORDS = 100

# Of the `-lora` engines.
NUM_ADAPTERS, ADAPTER_RANK = 4, 16

_SHAPE = re.compile(
    r"(?P<kind>json:|lora:)?(?P<count>\d+)x((?P<shared>\d+)\+)?(?P<prompt>\d+(-\d+)?)/(?P<output>\d+(-\d+)?)"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, its number of output tokens, the JSON schema of its answer, and its adapter."""

    prompt: list[int]
    num_output_tokens: int
    json_schema: dict[str, Any] | None = None
    adapter: int | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens, drawn uniformly from `low` to `high`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "Length":
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def draw(self, rng: random.Random) -> int:
        return self.low if self.low == self.high else rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are sent all at once.

    Attributes:
        num_shared: common prefix length of all prompts. It is computed with the prefix cache on,
            and is new in every round, so that it is not cached before.
        json_schema: of all answers; None: they are free.
        has_adapters: requests take the adapters in turn.
        figures: compared figures, by the names of `rounds.figures_of`.
    """

    name: str
    shape: str
    count: int
    num_shared: int
    prompt: Length
    output: Length
    seed: int
    json_schema: dict[str, Any] | None = None
    has_adapters: bool = False

    @property
    def prefix_cache(self) -> bool:
        return self.num_shared > 0

    @property
    def figures(self) -> tuple[str, ...]:
        if self.count == 1:
            return ("ttft_ms", "tpot_ms")
        return ("seconds",) if self.prefix_cache else ("tokens_per_s",)

    def requests(self, round_number: int = 0) -> list[Request]:
        """Returns the same requests for every engine; each round draws its own."""
        seed = self.seed + round_number
        rng = random.Random(seed)
        shared = _draw_ids(rng, self.num_shared)
        if self.num_shared:
            rng = random.Random(1000 * seed)
        return [
            Request(
                shared + _draw_ids(rng, self.prompt.draw(rng)),
                self.output.draw(rng),
                self.json_schema,
                index % NUM_ADAPTERS if self.has_adapters else None,
            )
            for index in range(self.count)
        ]


def parse(text: str) -> Workload:
    """Parses a workload's name or shape.

    Raises:
        ValueError: it is neither.
    """
    if text in NAMED:
        return NAMED[text]
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no workload: give one of {', '.join(NAMED)} or a shape such as 32x128/128"
        )
    return _shape(text, text, seed=6000)


def _shape(name: str, shape: str, seed: int) -> Workload:
    match = _SHAPE.fullmatch(shape)
    assert match is not None, shape
    return Workload(
        name=name,
        shape=shape,
        count=int(match["count"]),
        num_shared=int(match["shared"] or 0),
        prompt=Length.parse(match["prompt"]),
        output=Length.parse(match["output"]),
        seed=seed,
        json_schema=records_schema(JSON_RECORDS) if match["kind"] == "json:" else None,
        has_adapters=match["kind"] == "lora:",
    )


def _draw_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(LOW_ID, HIGH_ID) for _ in range(count)]


NAMED = {
    "single": _shape("single", "1x128/128", seed=1000),
    "long": _shape("long", "1x1024/16", seed=2000),
    "batch": _shape("batch", "32x128/128", seed=3000),
    "mixed": _shape("mixed", "64x16-512/16-256", seed=4000),
    "prefix": _shape("prefix", "32x512+32/32", seed=5000),
    "json": _shape("json", "json:32x128/128", seed=8000),
    "json-single": _shape("json-single", "json:1x128/128", seed=9000),
    "lora": _shape("lora", "lora:32x128/128", seed=10000),
    "lora-single": _shape("lora-single", "lora:1x128/128", seed=11000),
}
# Run before any timing: one short batch, and one wider than a decode step.
WARM_UP = (
    _shape("warm up", "2x64/8", seed=99),
    _shape("warm up wide", "33x40/4", seed=99),
)
# All sequences run at once and reach this length before the first one ends.
MEMORY = _shape("memory", "64x448/64", seed=7000)
FIRST_TOKEN = _shape("first token", "1x16/1", seed=98)
