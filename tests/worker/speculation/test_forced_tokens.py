"""Forced tokens change the number of steps and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.engine_driver import make_request, pack
from support.every_draft import verify_every_draft
from support.local_engine import Generated, generate, serve
from support.models import kernels_for
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_proto.grammars import Grammar
from taco_proto.requests import GenerateRequest
from taco_worker import worker as worker_module
from taco_worker.speculation.grammar_drafter import GrammarDrafter
from taco_worker.worker import Worker

SCHEMA = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer", "minimum": 0, "maximum": 99},
        "status of the request": {"enum": ["accepted", "accepted later", "refused"]},
        "is_final": {"type": "boolean"},
    },
    "required": ["identifier", "status of the request", "is_final"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
JSON = Grammar.of(json.dumps({"grammars": [{"json_schema": SCHEMA}]}))
DATE = Grammar.of('start: /[0-9]{4}-[0-9]{2}-01T00:00:00/ " and that is the whole of it"')
# Free text up to a trigger; then the text is forced.
TRIGGERED = Grammar.of(
    'start: TEXT "<" call\nTEXT: /[^<]{0,12}/\ncall: "function_call name=" ("x" | "yz") ">"'
)
FREE = Grammar.of("start: /(.|\\n)*/")
ASCII: dict[str, Any] = {
    "temperature": 0.9,
    "seed": 7,
    "allowed_token_ids": range(35, 90),
    "max_tokens": 16,
}
# Another sampling option each; None has no grammar.
PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.0, "grammar": JSON},
    {"temperature": 0.9, "seed": 3, "grammar": JSON, "logprobs": 2, "n": 2},
    {"temperature": 0.0, "grammar": DATE, "repetition_penalty": 1.3, "presence_penalty": 0.4},
    {"temperature": 0.9, "seed": 4, "grammar": DATE, "logit_bias": {40: 3.0}, "min_tokens": 12},
    {"temperature": 1.0, "seed": 5, "grammar": TRIGGERED, "ignore_eos": True},
    {"temperature": 0.8, "seed": 6, "top_p": 0.9, "top_k": 40, "max_tokens": 16},
    {**ASCII, "grammar": FREE},
    ASCII,
]
PROMPTS = [[5 + i, 9, 17 + 3 * i, *range(30, 30 + 7 * (i % 8))] for i in range(len(PARAMETERS))]
PROMPTS[7] = PROMPTS[6]


def requests() -> list[GenerateRequest]:
    return [
        make_request(i, PROMPTS[i], **{"max_tokens": 60, **fields})
        for i, fields in enumerate(PARAMETERS)
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def config(path: Path, **changes: Any) -> WorkerConfig:
    model = ModelConfig(model=str(path), dtype=changes.pop("dtype", "bfloat16"))
    values = {"model": model, "num_blocks": 128, "max_num_seqs": 64, **changes}
    return WorkerConfig(**values)


def make_worker(worker_config: WorkerConfig, serves: str = "kernels") -> Worker:
    return Worker(worker_config, lambda count: kernels_for(serves, 2))


async def answers(
    worker: Worker, *, alone: bool = False, **scheduler: Any
) -> tuple[Generated, Any]:
    async with serve(worker, **scheduler) as service:
        if not alone:
            return await generate(service, requests()), service.engine.counters
        merged = Generated()
        for request in requests():
            one = await generate(service, [request])
            merged.tokens |= one.tokens
            merged.reasons |= one.reasons
            merged.logprobs |= one.logprobs
            merged.errors |= one.errors
        return merged, service.engine.counters


async def check(
    path: Path,
    *,
    changes: dict[str, Any] | None = None,
    serves: str = "kernels",
    alone: bool = False,
    has_few_rows: bool = False,
    **scheduler: Any,
) -> tuple[Worker, Any]:
    """Compare a worker with one that computes one token a step.

    Args:
        has_few_rows: how many tokens are forced depends on which sequences share a step.
    """
    changes = changes or {}
    dtype = {"dtype": changes["dtype"]} if "dtype" in changes else {}
    plain = make_worker(config(path, max_forced_tokens=0, **dtype), serves)
    expected, plain_counters = await answers(plain)
    assert not expected.errors
    assert plain.step_metrics.num_forced == 0
    worker = make_worker(config(path, **changes), serves)
    got, counters = await answers(worker, alone=alone, **scheduler)
    assert got.errors == expected.errors
    assert got.tokens == expected.tokens
    assert got.reasons == expected.reasons
    # Torch's sums depend on the number of rows.
    tolerance = 1e-4 if serves == "torch" else 0.0
    for key, values in expected.logprobs.items():
        assert got.logprobs.get(key, []) == pytest.approx(values, abs=tolerance, rel=0)
    assert expected.tokens[6, 0] == expected.tokens[7, 0], "a grammar of all texts changes none"
    assert worker.step_metrics.num_forced > (10 if has_few_rows else 40)
    if not alone and not scheduler and not has_few_rows:
        assert counters.num_steps < 0.8 * plain_counters.num_steps
    return worker, counters


@pytest.mark.parametrize("alone", [False, True])
async def test_batched_and_alone(checkpoint: Path, alone: bool) -> None:
    await check(checkpoint, alone=alone)


async def test_on_torch(checkpoint: Path) -> None:
    await check(checkpoint, serves="torch", changes={"dtype": "float32"})


async def test_forced_tokens_need_no_logits(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(config(checkpoint))
    most_likely, num_rows = worker._model.most_likely, list[int]()

    def count(hidden: Tensor, *others: Any) -> Tensor:
        num_rows.append(hidden.shape[0])
        return most_likely(hidden, *others)

    monkeypatch.setattr(worker._model, "most_likely", count)
    async with serve(worker) as service:
        got = await generate(service, requests()[:1])
    assert worker.step_metrics.num_forced > 20
    assert num_rows == [1] * (len(got.tokens[0, 0]) - worker.step_metrics.num_forced)


async def test_without_running_ahead(checkpoint: Path) -> None:
    await check(checkpoint, run_ahead=False)


async def test_under_preemption_and_in_chunks(checkpoint: Path) -> None:
    _, counters = await check(checkpoint, changes={"num_blocks": 16}, max_num_batched_tokens=24)
    assert counters.num_preemptions > 0


def change_drafter(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    def make(*arguments: Any, **named: Any) -> GrammarDrafter:
        return GrammarDrafter(*arguments, **{**named, **changes})

    monkeypatch.setattr(worker_module, "GrammarDrafter", make)


@pytest.mark.parametrize("max_rows", [10, 20])
async def test_within_the_rows_that_a_step_has_memory_for(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int
) -> None:
    change_drafter(monkeypatch, max_rows=max_rows)
    await check(checkpoint, has_few_rows=True)


@pytest.fixture
def tokens_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: when a step begins, the host does not know the tokens of the step before."""
    change_drafter(monkeypatch, knows_tokens=False)


@pytest.mark.usefixtures("tokens_come_late")
@pytest.mark.parametrize("run_ahead", [True, False])
async def test_while_the_last_tokens_are_on_the_device(checkpoint: Path, run_ahead: bool) -> None:
    await check(checkpoint, run_ahead=run_ahead)


@pytest.mark.usefixtures("tokens_come_late")
async def test_late_tokens_under_preemption(checkpoint: Path) -> None:
    _, counters = await check(checkpoint, changes={"num_blocks": 16}, max_num_batched_tokens=24)
    assert counters.num_preemptions > 0


async def test_beside_a_drafter(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompt lookup drafts for free texts; its drafts for the others are often refused."""
    verify_every_draft(monkeypatch)
    speculation = SpeculationConfig(ngram_max=2, ngram_min=1, num_speculative_tokens=4)
    worker, counters = await check(checkpoint, changes={"speculation": speculation})
    assert counters.speculation.draft_tokens > worker.step_metrics.num_forced


@pytest.mark.parametrize("bans", ["bad_words", "min_tokens"])
async def test_a_banned_forced_token_is_an_error_of_its_row_alone(
    checkpoint: Path, bans: str
) -> None:
    """Sampling parameters that exclude the one token that a grammar allows."""
    whole = (await answers(make_worker(config(checkpoint))))[0].tokens
    banned = whole[0, 0][8]
    fields: dict[str, Any] = {"bad_words_token_ids": [(banned,)]}
    if bans == "min_tokens":
        fields = {"stop_token_ids": [banned], "min_tokens": 60}
    failing = make_request(9, PROMPTS[0], temperature=0.0, max_tokens=60, grammar=JSON, **fields)
    for max_forced_tokens in (0, 15):
        worker = make_worker(config(checkpoint, max_forced_tokens=max_forced_tokens))
        async with serve(worker) as service:
            alone = await generate(service, [failing])  # without any logits that others need
            got = await generate(service, [*requests(), failing])
        assert alone.reasons_of_errors == got.reasons_of_errors == {9: "no_allowed_token"}
        assert got.tokens == {**whole, **{k: v for k, v in got.tokens.items() if k[0] == 9}}
        assert got.tokens.get((9, 0), []) == whole[0, 0][: len(got.tokens.get((9, 0), []))]


async def test_a_worker_rebuilds_the_state_of_another(checkpoint: Path) -> None:
    """What a lost worker's sequences have so far comes with their tokens."""
    first = make_worker(config(checkpoint))
    expected = (await answers(first))[0]
    resumed = [
        make_request(
            i,
            PROMPTS[i],
            **{"max_tokens": 60, **fields},
            emitted_token_ids=tuple(
                pack(expected.tokens[i, index][:half]) for index in range(fields.get("n", 1))
            ),
        )
        for i, fields in enumerate(PARAMETERS)
        if (half := len(expected.tokens[i, 0]) // 2) > 1
    ]
    async with serve(make_worker(replace(config(checkpoint), max_forced_tokens=3))) as service:
        got = await generate(service, resumed)
    for (handle, index), tokens in got.tokens.items():
        half = len(expected.tokens[handle, 0]) // 2
        assert expected.tokens[handle, index][half:] == tokens
