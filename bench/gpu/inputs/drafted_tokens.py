"""Compares greedy tokens of the demo model with drafts (heads, lookahead cache) and without.

In float32 they must be equal. In 16 bits they must be equal up to the first position where the
two best tokens are closer than 0.05, as in `tokens`. All drafts are verified, whether or not
that is faster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import pytest

from bench.gpu.harness.context import Context
from bench.gpu.inputs.tokens import Token, differ
from support.every_draft import verify_every_draft
from taco_llm.llm import LLM
from taco_llm.outputs import RequestOutput
from taco_proto.sampling_params import SamplingParams

_QUESTIONS = (
    "What is the speed of light?",
    "Who wrote Hamlet?",
    "How do I open a file in Python?",
    "What does len() do?",
    "How do I sort a list?",
    "What is a dict?",
)
_NUM_TOKENS, _TRIAL_TOKENS = 48, 12
_CLOSE = 0.05
_ENGINE_SECONDS = 8.0


def compare_drafted_tokens(context: Context) -> None:
    """Records how many answers differ that must not, and how many drafts were accepted."""
    for dtype in ("float32", "bfloat16") if context.is_real else ("float32",):
        with tempfile.TemporaryDirectory() as empty:
            drafters: dict[str, dict[str, Any]] = {
                "lookahead": {"lookahead_cache_config_dir": empty},
                "medusa": {"speculative_model": "demo-medusa"},
                "eagle": {"speculative_model": "demo-eagle"},
            }
            wanted, _ = _answers(context, dtype, {})
            for name, arguments in drafters.items():
                text = f"tokens with {name}, {dtype}"
                if not context.report.has_time(text, _ENGINE_SECONDS if context.is_real else 0.0):
                    continue
                try:
                    answers, num_accepted = _answers(context, dtype, arguments)
                except Exception as error:  # the other drafters are compared anyway
                    failure = f"{type(error).__name__}: {error}"
                    figures = {"ran": len(_QUESTIONS), "failed": 1, "failures": [failure]}
                    context.report.add(text, figures, failure.splitlines()[0])
                    continue
                _report(context, text, dtype, answers, wanted, num_accepted)


def _report(
    context: Context,
    text: str,
    dtype: str,
    answers: Sequence[Sequence[Token]],
    wanted: Sequence[Sequence[Token]],
    num_accepted: int,
) -> None:
    close = 0.0 if dtype == "float32" else _CLOSE
    failures = [
        question
        for question, ours, theirs in zip(2 * _QUESTIONS, answers, wanted, strict=True)
        if differ(ours, theirs, close)
    ]
    if not num_accepted:
        failures.append("no draft was accepted: nothing is shown")
    figures = {
        "ran": len(answers),
        "failed": len(failures),
        "failures": failures,
        "accepted": num_accepted,
    }
    line = f"{len(answers)} answers, {len(failures)} differ; {num_accepted} drafts accepted"
    context.report.add(text, figures, line)


def _answers(
    context: Context, dtype: str, arguments: dict[str, Any]
) -> tuple[list[list[Token]], int]:
    """Returns answers to all questions, asked twice so that the cache has learned them, and the
    number of accepted drafts.
    """
    with pytest.MonkeyPatch.context() as patch:
        verify_every_draft(patch)
        with LLM(
            "demo",
            device=context.device.type,
            dtype=dtype,
            max_num_seqs=len(_QUESTIONS),
            max_model_len=256,
            num_gpu_blocks_override=128,
            **arguments,
        ) as llm:
            conversations = [[{"role": "user", "content": question}] for question in _QUESTIONS]
            length = _NUM_TOKENS if context.is_real else _TRIAL_TOKENS
            params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=2)
            outputs: list[RequestOutput] = []
            for _ in range(2):
                outputs += llm.chat(conversations, params, use_tqdm=False)
            counters = llm._engine._scheduler.engine.counters.speculation
            return [_tokens(output) for output in outputs], counters.accepted_tokens


def _tokens(output: RequestOutput) -> list[Token]:
    (answer,) = output.outputs
    assert answer.logprobs is not None
    tokens = []
    for token_id, position in zip(answer.token_ids, answer.logprobs, strict=True):
        best, second = sorted((each.logprob for each in position.values()), reverse=True)[:2]
        tokens.append(Token(token_id, best - second))
    return tokens
