"""Logits processors on a real engine: which tokens they see, and what a failure ends."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.engine_driver import make_request
from support.local_engine import generate, generate_beside, serve
from support.logits_processors import (
    Counts,
    Fails,
    Force,
    Raises,
    Returns,
    ban_last,
    follow_history,
)
from support.models import kernels_for
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.grammars import Grammar
from taco_proto.logits_processors import LogitsProcessor
from taco_proto.requests import GenerateRequest
from taco_worker.worker import Worker

FORCE, FAILS = f"{Force.__module__}:Force", f"{Fails.__module__}:Fails"
PROMPTS = [[5 + i, 9, 17 + 3 * i, *range(30, 30 + 7 * (i % 4))] for i in range(8)]
PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logits_processors": [ban_last]},
    {"temperature": 0.0, "logits_processors": [follow_history]},
    {"temperature": 0.9, "seed": 4, "logits_processors": [follow_history, ban_last], "logprobs": 2},
    {"temperature": 0.8, "n": 2, "logits_processors": [Counts()]},
    {"temperature": 0.0, "logits_processors": [FORCE], "extra_args": {"forced_token": 77}},
    {"temperature": 0.7, "logits_processors": [FORCE, follow_history]},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logits_processors": [ban_last]},
    {"temperature": 0.0, "seed": 3},
]

IMPOSSIBLE = Grammar.of('start: "a" end\nend: /[^\\s\\S]/')


def requests(first: int = 0) -> list[GenerateRequest]:
    return [
        make_request(first + i, PROMPTS[i], max_tokens=40, ignore_eos=True, **fields)
        for i, fields in enumerate(PARAMETERS)
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def make_worker(checkpoint: Path, serves: str = "kernels", **config: Any) -> Worker:
    model = ModelConfig(model=str(checkpoint), dtype="float32")
    settings = WorkerConfig(
        model=model, num_blocks=64, max_num_seqs=16, logits_processors=(Force, Fails)
    )
    return Worker(replace(settings, **config), lambda count: kernels_for(serves, 1))


@pytest.mark.parametrize("serves", ["kernels", "torch"])
async def test_alone_is_batched_is_preempted_is_chunked(checkpoint: Path, serves: str) -> None:
    async with serve(make_worker(checkpoint, serves)) as service:
        together = await generate(service, requests())
        alone: dict[tuple[int, int], list[int]] = {}
        for request in requests():
            alone |= (await generate(service, [request])).tokens
    assert together.tokens == alone
    assert not together.errors
    assert together.tokens[4, 0] == [77] * 40
    plain = requests()[1].sampling.with_updates(logits_processors=None)
    async with serve(make_worker(checkpoint, serves)) as service:
        free = await generate(service, [replace(requests()[1], sampling=plain)])
    assert free.tokens[1, 0] != together.tokens[1, 0]
    tight = make_worker(checkpoint, serves, num_blocks=9)
    async with serve(tight, max_num_batched_tokens=24) as service:
        squeezed = await generate(service, requests()[:3] + requests()[4:])
        assert service.engine.counters.num_preemptions > 0
    assert squeezed.tokens == {key: v for key, v in together.tokens.items() if key[0] != 3}


async def test_a_processor_sees_the_committed_tokens(checkpoint: Path) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def watch(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
        seen.append((list(prompt), list(output)))
        output.append(9)  # a copy
        return logits

    request = make_request(
        0, PROMPTS[3], emitted=[8, 9], max_tokens=6, ignore_eos=True, logits_processors=[watch]
    )
    async with serve(make_worker(checkpoint)) as service:
        got = await generate(service, [request])
    tokens = [8, 9, *got.tokens[0, 0]]
    assert [output for _, output in seen] == [tokens[:count] for count in range(2, 6)]
    assert all(prompt == PROMPTS[3] for prompt, _ in seen)


async def test_the_logprobs_are_the_models_own(checkpoint: Path) -> None:
    asked: dict[str, Any] = {"temperature": 0.0, "max_tokens": 1, "logprobs": 2}
    plain = make_request(0, PROMPTS[0], **asked)
    banned: list[LogitsProcessor] = [lambda output, logits: logits.fill_(0.0)]
    changed = make_request(1, PROMPTS[0], logits_processors=banned, **asked)
    async with serve(make_worker(checkpoint)) as service:
        got = await generate(service, [plain, changed])
    assert got.gaps[0, 0] == got.gaps[1, 0]
    assert got.tokens[1, 0] == [0]


def endless(output: list[int], logits: Tensor) -> Tensor:
    raise StopIteration


FAILURES: list[tuple[dict[str, Any], int, str, str]] = [
    ({"logits_processors": [Raises(0)]}, 500, "processor_failed", "RuntimeError: secret"),
    ({"logits_processors": [Raises(3)]}, 500, "processor_failed", "RuntimeError: secret"),
    ({"logits_processors": [Raises(2, error=SystemExit)]}, 500, "processor_failed", "SystemExit"),
    ({"logits_processors": [Raises(2, error=MemoryError)]}, 500, "processor_failed", "MemoryError"),
    ({"logits_processors": [endless]}, 500, "processor_failed", "StopIteration"),
    ({"logits_processors": [ban_last, Returns(lambda _: None)]}, 500, "processor_failed",
     "returned NoneType instead of the logits"),
    ({"logits_processors": [Returns(lambda row: row[:-1])]}, 500, "processor_failed", "returned"),
    ({"logits_processors": [Returns(lambda row: row[None])]}, 500, "processor_failed", "returned"),
    ({"logits_processors": [Returns(lambda row: row.long())]}, 500, "processor_failed", "int64"),
    ({"logits_processors": [Returns(lambda row: row.to("meta"))]}, 500, "processor_failed",
     "failed"),
    ({"logits_processors": [Returns(lambda row: row.fill_(-math.inf))]}, 500, "processor_failed",
     "no token has a finite logit"),
    ({"logits_processors": [Returns(lambda row: row * math.nan)]}, 500, "processor_failed",
     "no token has a finite logit"),
    ({"logits_processors": [FORCE], "extra_args": {"forced_token": 10**9}}, 400,
     "invalid_arguments", "forced_token must be a token id"),
    ({"logits_processors": [FAILS], "extra_args": {"fail_at": "validation"}}, 400,
     "invalid_arguments", "fail_at is wrong"),
    ({"logits_processors": [FAILS], "extra_args": {"fail_at": "text"}}, 400,
     "invalid_arguments", r"no text: \ud800xxx"),
    ({"logits_processors": [FAILS], "extra_args": {"fail_at": "start"}}, 500,
     "processor_failed", "failed: KeyError"),
    ({"logits_processors": [FAILS], "extra_args": {"fail_at": 4}, "n": 2}, 500,
     "processor_failed", "failed: SystemExit"),
    ({"logits_processors": [FAILS], "extra_args": {"fail_at": "start"}, "grammar": IMPOSSIBLE},
     500, "processor_failed", "failed: KeyError"),
    # The grammar allows one token, and then none.
    ({"logits_processors": [Raises(0)], "grammar": IMPOSSIBLE}, 500, "processor_failed", "failed"),
    ({"logits_processors": [Raises(1)], "grammar": IMPOSSIBLE}, 400, "no_allowed_token",
     "no token"),
    ({"logits_processors": ["os:system"]}, 400, "", "have not loaded"),
]  # fmt: skip


@pytest.mark.parametrize("budget", [16, 2048], ids=["in chunks", "at once"])
async def test_a_failure_ends_its_own_sequence(checkpoint: Path, budget: int) -> None:
    failing = [
        make_request(100 + i, PROMPTS[i % 8] * 2, max_tokens=9, ignore_eos=True, **fields)
        for i, (fields, *_) in enumerate(FAILURES)
    ]
    async with serve(make_worker(checkpoint), max_num_batched_tokens=budget) as service:
        mixed = [*failing, *requests()]
        _, together, _ = await generate_beside(service, requests(), mixed)
        assert service.engine.counters.num_failed_steps == 0
    assert len(together.errors) == len(FAILURES)
    for request, (_, code, reason, words) in zip(failing, FAILURES, strict=True):
        status, message = together.errors[request.handle]
        assert status == code, message
        assert words in message
        assert together.reasons_of_errors.get(request.handle, "") == reason
        names_only = all(isinstance(p, str) for p in request.sampling.logits_processors or ())
        assert not (names_only and "secret" in message)
        assert len(message) <= 4096


async def test_processors_come_before_the_mask_of_a_grammar(checkpoint: Path) -> None:
    """The processor wants a token that the grammar forbids, and then chooses among the others."""
    request = make_request(
        0,
        PROMPTS[0],
        temperature=0.0,
        max_tokens=20,
        logits_processors=[lambda output, logits: -logits],
        grammar=Grammar.of('start: "yes" | "no"'),
    )
    plain = replace(request, handle=1, sampling=request.sampling.with_updates(logits_processors=[]))
    async with serve(make_worker(checkpoint)) as service:
        got = await generate(service, [request, plain])
    assert not got.errors
    assert got.reasons[0, 0] == got.reasons[1, 0]
    assert got.tokens[0, 0] != got.tokens[1, 0]
