"""Greedy tokens of whole models, with the device's own attention and with torch's.

In float32 they must be the same. In 16 bits they must be so up to the first position where the two
best tokens are closer than 0.05: from there on the sequences are different ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpu.context import Context
from gpu.llama import TINY, model_folder

from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import IntArray, JoinedSequences, StepOutput, StepPlan, WorkerInfo
from taco_worker.worker import Worker

_MODEL = TINY | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
_PROMPT_LENS = (1, 5, 16, 17, 40, 100)
_NUM_TOKENS = 24
_BLOCKS_EACH = 8
_CLOSE = 0.05


@dataclass(frozen=True, slots=True)
class Token:
    """A sampled token, and how much likelier the best token is than the second (natural log)."""

    token_id: int
    lead: float


def compare_tokens(context: Context) -> None:
    """Adds how many sequences differ where they must not."""
    dtypes = ("float32", "bfloat16", "float16") if context.is_real else ("float32",)
    for dtype in dtypes:
        ours = _generate(context, dtype, attention_backend=None, enforce_eager=False)
        by_torch = _generate(context, dtype, attention_backend="torch", enforce_eager=True)
        close = 0.0 if dtype == "float32" else _CLOSE
        differing = [
            row for row, pair in enumerate(zip(ours, by_torch, strict=True)) if differ(*pair, close)
        ]
        figures: dict[str, Any] = {
            "ran": len(ours),
            "failed": len(differing),
            "failures": [f"prompt of {_PROMPT_LENS[row]} tokens" for row in differing],
        }
        line = f"{len(ours)} sequences, {len(differing)} differ"
        context.report.add(f"tokens, {dtype}", figures, line)


def differ(ours: Sequence[Token], wanted: Sequence[Token], close: float) -> bool:
    """Whether two sequences part at a position where the best token leads by `close` or more."""
    for our, their in zip(ours, wanted, strict=True):
        if our.token_id != their.token_id:
            return their.lead >= close
    return False


def _generate(context: Context, dtype: str, **options: Any) -> list[list[Token]]:
    with model_folder(_MODEL) as folder:
        worker = Worker(
            WorkerConfig(
                model=ModelConfig(model=folder, load_format="dummy", dtype=dtype),
                device=context.device.type,
                max_num_seqs=len(_PROMPT_LENS),
                num_blocks=_BLOCKS_EACH * len(_PROMPT_LENS),
                **options,
            )
        )
    tokens: list[list[Token]] = [[] for _ in _PROMPT_LENS]
    for plan in _plans(worker.info):
        while worker.tune(between_steps=True):
            pass
        for slot, token in _tokens(worker.execute(plan)):
            tokens[slot].append(token)
    return tokens


def _plans(info: WorkerInfo) -> Iterator[StepPlan]:
    """All prompts in one step, then a token of each."""
    count, total = len(_PROMPT_LENS), sum(_PROMPT_LENS)
    slots, lens = np.arange(count, dtype=np.int32), np.array(_PROMPT_LENS, dtype=np.int32)
    rng = np.random.default_rng(0)

    def each(value: int) -> IntArray:
        return np.full(count, value, dtype=np.int32)

    joined = JoinedSequences(
        slots=slots,
        num_prompt_tokens=lens,
        num_tokens=lens,
        num_computed_tokens=each(0),
        token_ids=rng.integers(0, info.vocab_size, total, dtype=np.int32),
        num_blocks=each(_BLOCKS_EACH),
        block_ids=rng.permutation(count * _BLOCKS_EACH).astype(np.int32),
        sampling=(SamplingParams(temperature=0.0, seed=0, logprobs=2),) * count,
    )
    yield StepPlan(epoch=1, step_id=0, slots=slots, num_tokens=lens, joined=joined)
    for step_id in range(1, _NUM_TOKENS):
        yield StepPlan(epoch=1, step_id=step_id, slots=slots, num_tokens=each(1))


def _tokens(output: StepOutput) -> Iterator[tuple[int, Token]]:
    if output.error or output.logprobs is None:
        raise RuntimeError(output.error or "there are no log probabilities")
    # Of each row the token itself, then the two best.
    logprobs = np.array(output.logprobs.logprobs).reshape(-1, 3)
    leads = logprobs[:, 1] - logprobs[:, 2]
    for slot, token_id, lead in zip(output.slots, output.token_ids, leads, strict=True):
        yield int(slot), Token(int(token_id), float(lead))
