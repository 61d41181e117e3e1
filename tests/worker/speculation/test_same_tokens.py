"""Right and wrong drafts, in chains and trees, do not change the tokens of plain decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from support.checkpoints import make_checkpoint, plant_outliers
from support.drafters import KnowingDrafter
from support.engine_driver import make_request
from support.every_draft import verify_every_draft
from support.local_engine import generate, serve
from support.logits_processors import ban_last, follow_history
from support.models import kernels_for
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_proto.grammars import Grammar
from taco_proto.requests import GenerateRequest
from taco_worker.speculation import speculator_factory
from taco_worker.worker import Worker

RECIPES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "OPTForCausalLM",
    "GPT2LMHeadModel",
)
PROMPTS = [[5 + i, 9, 17 + 3 * i, *range(30, 30 + 7 * (i % 8))] for i in range(14)]
SCHEMA = (
    '{"grammars": [{"json_schema": {"type": "object", "properties": {"a": {"type": "integer"},'
    ' "b": {"enum": ["x", "yz"]}}, "required": ["a", "b"], "additionalProperties": false}}]}'
)


def fails_after_other_tokens(output: list[int], logits: Tensor) -> Tensor:
    """Of drafts that are rejected, the failure has no effect."""
    if not all(40 <= token_id < 60 for token_id in output):
        raise RuntimeError
    return logits


# Each uses another sampling option.
PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": 4, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.4, "min_tokens": 9},
    {"temperature": 1.0, "n": 2, "stop_token_ids": (50, 51, 52), "logit_bias": {50: 3.0}},
    {"temperature": 0.9, "seed": 7, "allowed_token_ids": range(40, 60)},
    {
        "temperature": 0.8,
        "seed": 8,
        "allowed_token_ids": range(60, 64),
        "bad_words_token_ids": [(60, 61), (62, 63, 62), (61, 61)],
    },
    {"temperature": 0.0, "grammar": Grammar.of('start: /[a-d ]{9,12}/ end\nend: "." | "!"')},
    {"temperature": 0.9, "seed": 9, "grammar": Grammar.of(SCHEMA), "logprobs": 2},
    {
        "temperature": 0.8,
        "n": 2,
        "grammar": Grammar.of("start: /[^x]*/"),
        "min_tokens": 5,
        "repetition_penalty": 1.2,
    },
    {"temperature": 0.0, "logits_processors": [follow_history]},
    {"temperature": 0.9, "seed": 5, "n": 2, "logits_processors": [ban_last], "logprobs": 2},
    {
        "temperature": 0.7,
        "allowed_token_ids": range(40, 60),
        "logits_processors": [fails_after_other_tokens],
    },
]
LONG_ANSWERS = (0, 2)  # both at a time need 13 blocks


def requests() -> list[GenerateRequest]:
    """Handles number the prompts; each prompt has one answer per sequence."""
    return [
        make_request(
            i,
            PROMPTS[i],
            max_tokens=90 if i in LONG_ANSWERS else 24,
            ignore_eos=i % 2 == 0,
            **fields,
        )
        for i, fields in enumerate(PARAMETERS)
    ]


def config(path: Path, *, num_blocks: int = 64, **model: Any) -> WorkerConfig:
    return WorkerConfig(
        model=ModelConfig(model=str(path), **model), num_blocks=num_blocks, max_num_seqs=8
    )


@pytest.fixture
def every_draft_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    verify_every_draft(monkeypatch)


async def plain_answers(worker: Worker) -> Any:
    async with serve(worker) as service:
        return await generate(service, requests())


def speculating(
    worker_config: WorkerConfig,
    truth: Any,
    monkeypatch: pytest.MonkeyPatch,
    serves: str,
    *,
    branches: bool,
) -> Worker:
    drafter = KnowingDrafter(truth, branches=branches)
    monkeypatch.setattr(speculator_factory, "_make_drafter", lambda *arguments: drafter)
    wanted = replace(worker_config, speculation=SpeculationConfig())
    return Worker(wanted, lambda count: kernels_for(serves, 2))


async def check(
    worker_config: WorkerConfig,
    monkeypatch: pytest.MonkeyPatch,
    *,
    serves: str = "kernels",
    branches: bool = True,
    tight_blocks: int | None = None,
    **scheduler: Any,
) -> None:
    plain = replace(worker_config, max_forced_tokens=0)
    expected = await plain_answers(Worker(plain, lambda count: kernels_for(serves, 2)))
    assert not expected.errors
    truth: dict[tuple[int, ...], list[list[int]]] = {}
    for (handle, _), tokens in expected.tokens.items():
        truth.setdefault(tuple(PROMPTS[handle]), []).append(tokens)
    if tight_blocks is not None:
        worker_config = replace(worker_config, num_blocks=tight_blocks)
    worker = speculating(worker_config, truth, monkeypatch, serves, branches=branches)
    async with serve(worker, **scheduler) as service:
        got = await generate(service, requests())
        counters = service.engine.counters
    assert got.tokens == expected.tokens
    assert got.reasons == expected.reasons
    # Torch's sums depend on the number of rows.
    tolerance = 1e-4 if serves == "torch" else 0.0
    for key, values in expected.logprobs.items():
        assert got.logprobs.get(key, []) == pytest.approx(values, abs=tolerance, rel=0)
    assert counters.speculation.accepted_tokens > 20
    assert counters.speculation.draft_tokens > counters.speculation.accepted_tokens
    if tight_blocks is not None:
        assert counters.num_preemptions > 0


@pytest.mark.usefixtures("every_draft_is_verified")
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
async def test_every_recipe_on_the_cpu_kernels(
    recipe: str, branches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint(tmp_path / "model", recipe)
    await check(config(path, dtype="bfloat16"), monkeypatch, branches=branches)


@pytest.mark.usefixtures("every_draft_is_verified")
@pytest.mark.parametrize("kind", ["float32", "int8", "fp8"])
async def test_other_number_formats(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant_outliers(make_checkpoint(tmp_path / "model"))
    model: dict[str, Any] = {"dtype": "float32"} if kind == "float32" else {"quantization": "int8"}
    wanted = config(path, **model)
    if kind != "float32":
        wanted = replace(wanted, kv_cache_dtype=kind)
    await check(wanted, monkeypatch)


@pytest.mark.usefixtures("every_draft_is_verified")
async def test_under_preemption_and_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint(tmp_path / "model")
    await check(
        config(path, dtype="bfloat16"), monkeypatch, tight_blocks=8, max_num_batched_tokens=24
    )


@pytest.mark.usefixtures("every_draft_is_verified")
async def test_without_running_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path / "model")
    await check(config(path, dtype="bfloat16"), monkeypatch, run_ahead=False)


@pytest.mark.usefixtures("every_draft_is_verified")
@pytest.mark.parametrize("branches", [False, True])
async def test_on_torch(branches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path / "model")
    await check(config(path, dtype="float32"), monkeypatch, serves="torch", branches=branches)


async def test_with_the_speculators_choice_of_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint(tmp_path / "model")
    truth_config = config(path, dtype="bfloat16")
    expected = await plain_answers(Worker(truth_config, lambda count: kernels_for("kernels", 2)))
    truth: dict[tuple[int, ...], list[list[int]]] = {}
    for (handle, _), tokens in expected.tokens.items():
        truth.setdefault(tuple(PROMPTS[handle]), []).append(tokens)
    worker = speculating(truth_config, truth, monkeypatch, "kernels", branches=True)
    async with serve(worker) as service:
        assert (await generate(service, requests())).tokens == expected.tokens
