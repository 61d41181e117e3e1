"""Compares greedy tokens of whole models: the device's own attention beside torch's.

In float32 they must be equal. In 16 bits they must be equal up to the first position where the
two best tokens are closer than 0.05: after that, the sequences differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.gpu.harness.context import Context
from bench.gpu.inputs.llama import TINY, model_folder
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
    """A sampled token, and the log-probability lead of the best token over the second."""

    token_id: int
    lead: float


def compare_tokens(context: Context) -> None:
    """Records how many sequences differ that must not."""
    dtypes = ("float32", "bfloat16", "float16") if context.is_real else ("float32",)
    for dtype in dtypes:
        try:
            failures = _differing(context, dtype)
        except Exception as error:  # a failed step; the tests run anyway
            failures = [f"{type(error).__name__}: {error}"]
        figures = {"ran": len(_PROMPT_LENS), "failed": len(failures), "failures": failures}
        line = f"{len(_PROMPT_LENS)} sequences, {len(failures)} differ"
        context.report.add(f"tokens, {dtype}", figures, line)


def _differing(context: Context, dtype: str) -> list[str]:
    ours = _generate(_make_worker(context, dtype, by_torch=False))
    wanted = _generate(_make_worker(context, dtype, by_torch=True))
    close = 0.0 if dtype == "float32" else _CLOSE
    return [
        f"prompt of {prompt_len} tokens"
        for prompt_len, our, their in zip(_PROMPT_LENS, ours, wanted, strict=True)
        if differ(our, their, close)
    ]


def differ(ours: Sequence[Token], wanted: Sequence[Token], close: float) -> bool:
    """Whether two sequences diverge at a position where the best token leads by `close` or more."""
    for our, their in zip(ours, wanted, strict=True):
        if our.token_id != their.token_id:
            return their.lead >= close
    return False


def _make_worker(context: Context, dtype: str, *, by_torch: bool) -> Worker:
    """Makes a worker. `by_torch`: torch's attention and no graphs on a GPU, no TACO kernels on a
    CPU.
    """
    plainly = by_torch and context.is_real
    with model_folder(_MODEL) as folder:
        config = WorkerConfig(
            model=ModelConfig(model=folder, load_format="dummy", dtype=dtype),
            device=context.device.type,
            max_num_seqs=len(_PROMPT_LENS),
            num_blocks=_BLOCKS_EACH * len(_PROMPT_LENS),
            attention_backend="torch" if plainly else None,
            enforce_eager=plainly,
        )
        return Worker(config, lambda _: None) if by_torch else Worker(config)


def _generate(worker: Worker) -> list[list[Token]]:
    tokens: list[list[Token]] = [[] for _ in _PROMPT_LENS]
    for plan in _plans(worker.info):
        while worker.tune(between_steps=True):
            pass
        for slot, token in _tokens(worker.execute(plan)):
            tokens[slot].append(token)
    return tokens


def _plans(info: WorkerInfo) -> Iterator[StepPlan]:
    """Yields all prompts in one step, then one token of each per step."""
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
    # Per row: the token itself, then the two best.
    logprobs = np.array(output.logprobs.logprobs).reshape(-1, 3)
    leads = logprobs[:, 1] - logprobs[:, 2]
    for slot, token_id, lead in zip(output.slots, output.token_ids, leads, strict=True):
        yield int(slot), Token(int(token_id), float(lead))
