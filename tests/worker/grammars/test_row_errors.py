"""A grammar that fails ends its own sequence: the others' tokens, and the epoch, stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLParserLimits

from support.checkpoints import POISON, make_poisoned_checkpoint
from support.engine_driver import make_request
from support.local_engine import generate_beside, serve
from support.models import kernels_for
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.grammars import Grammar
from taco_proto.requests import GenerateRequest
from taco_worker.grammars import limits
from taco_worker.worker import Worker

PROMPT = list(range(20, 45))
SCHEMA = Grammar.of(
    '{"grammars": [{"json_schema": {"type": "array", "items": {"enum": ["a", "bc", 12]},'
    ' "minItems": 9, "maxItems": 9}}]}'
)
TOO_COMPLEX = Grammar.of("start: /(.*a.{30}b){3}/")
IMPOSSIBLE = Grammar.of('start: "a" end\nend: /[^\\s\\S]/')
LETTERS = Grammar.of("start: /[x-z]{40}/")
LATER_IMPOSSIBLE = Grammar.of("start: /[b-f]{3}/ end\nend: /[^\\s\\S]/")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_poisoned_checkpoint(tmp_path_factory.mktemp("model"))


def healthy() -> list[GenerateRequest]:
    """With and without grammars, on the way through logits and on the one without."""
    fields: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 0.0, "grammar": SCHEMA},
        {"temperature": 1.0, "top_p": 0.9, "grammar": SCHEMA},
        {"temperature": 0.0, "grammar": SCHEMA, "logprobs": 1, "repetition_penalty": 1.2},
    ]
    bias = {POISON: -100.0}
    return [
        make_request(i, PROMPT[: 9 + i], max_tokens=60, logit_bias=bias if i < 2 else {}, **own)
        for i, own in enumerate(fields)
    ]


def failing(first_handle: int) -> dict[int, tuple[GenerateRequest, str]]:
    """Requests with the reasons of their errors, greedy and random."""
    poisoned = [*PROMPT[:6], POISON, *PROMPT[6:]]
    cases = [
        (poisoned, SCHEMA, "invalid_logits"),
        (PROMPT, IMPOSSIBLE, "no_allowed_token"),
        (PROMPT, LATER_IMPOSSIBLE, "no_allowed_token"),
        (PROMPT, TOO_COMPLEX, "grammar_limit"),
    ]
    rows: list[tuple[list[int], Grammar | None, str, dict[str, Any]]] = [
        (*case, {"temperature": temperature}) for case in cases for temperature in (0.0, 0.9)
    ]
    # A model's NaN stays the model's fault beside parameters that ban tokens.
    rows.append((poisoned, None, "invalid_logits", {"allowed_token_ids": (5, 6)}))
    # Parameters that leave no token of the grammar's, at once and later.
    excluding: list[dict[str, Any]] = [
        {"allowed_token_ids": (0,)},
        {"no_repeat_ngram_size": 1, "logprobs": 1},
    ]
    rows += [
        (PROMPT, LETTERS, "no_allowed_token", {"temperature": temperature, **fields})
        for fields in excluding
        for temperature in (0.0, 0.9)
    ]
    return {
        handle: (
            make_request(handle, prompt, max_tokens=60, grammar=grammar, **fields),
            reason,
        )
        for handle, (prompt, grammar, reason, fields) in enumerate(rows, first_handle)
    }


@pytest.mark.parametrize("serves", ["kernels", "torch"])
async def test_failed_grammars_end_their_own_sequences(
    checkpoint: Path, serves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        limits,
        "parser_limits",
        lambda: LLParserLimits(step_lexer_fuel=200, verbose_errors=False),
    )
    model = ModelConfig(model=str(checkpoint), dtype="float32")
    config = WorkerConfig(model=model, num_blocks=256, max_num_seqs=16, num_threads=1)
    worker = Worker(config, lambda count: kernels_for(serves, count or 1))
    good, bad = healthy(), failing(len(healthy()))
    async with serve(worker) as service:
        mixed = [*good, *(request for request, _ in bad.values())]
        _, together, _ = await generate_beside(service, good, mixed)
        counters = service.engine.counters
    assert together.reasons_of_errors == {handle: reason for handle, (_, reason) in bad.items()}
    assert counters.num_failed_steps == 0
    assert sum(counters.row_errors.values()) == len(bad)
