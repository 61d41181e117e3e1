"""Triton's sampling operations, as the sampler calls them, against torch's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from support import sampling_cases as cases
from support import triton_interpreter
from support.sampling_cases import make_metadata
from taco_kernels.sampling_metadata import Array, Penalties, SamplingMetadata
from taco_proto.sampling_params import SamplingParams
from taco_worker.devices.transfers import Transfers
from taco_worker.sampling.ops import SamplingOps
from taco_worker.sampling.sampler import SampledRows, SampledTokens, Sampler
from taco_worker.sampling.slot_params import SlotSamplingParams
from taco_worker.sampling.token_masks import TokenMasks
from taco_worker.sampling.torch_ops import TorchSampling
from taco_worker.sampling.triton_ops import TritonSampling

triton_interpreter.install()
DEVICE = triton_interpreter.DEVICE
VOCAB_SIZE = 300


@pytest.fixture
def ops() -> Iterator[TritonSampling]:
    """Raise on every operation that waits for a GPU."""
    ops = TritonSampling(Transfers(DEVICE))
    if DEVICE.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    yield ops
    if DEVICE.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")


def to_host(tensor: Tensor) -> Tensor:
    if DEVICE.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    return tensor.cpu()


@pytest.mark.parametrize(
    "columns",
    [
        {"temperature": [0.0, 0.0, 0.0]},
        {"temperature": [1.0, 0.0, 0.5]},
        {"temperature": [1.0, 0.0, 0.5], "top_k": [0, 7, 0]},
        {"temperature": [1.0, 0.0, 0.5], "top_k": [5, 0, 0], "top_p": [1.0, 1.0, 0.9]},
        {"min_p": 0.05},
    ],
    ids=str,
)
def test_rows_with_different_options_match_torch(
    ops: TritonSampling, columns: dict[str, float | list[float]]
) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, VOCAB_SIZE, generator=generator) * 2
    metadata = make_metadata(3, **columns, uniforms=[0.2, 0.5, 0.8])

    def sample(rows: Tensor, metadata: SamplingMetadata) -> Tensor:
        return to_host(ops.sample(rows.to(DEVICE), metadata))

    cases.check_each_row(sample, logits, metadata)


def test_penalties_keep_no_state_between_steps(ops: TritonSampling) -> None:
    def penalize(logits: Tensor, tokens: Tensor, penalties: Penalties) -> None:
        changed = logits.to(DEVICE)
        ops.penalize(changed, tokens.to(DEVICE), penalties)
        logits.copy_(to_host(changed))

    for _ in range(2):
        cases.check_penalties(penalize, *cases.make_penalties())


def test_masks_ban_what_they_do_not_allow(ops: TritonSampling) -> None:
    def mask(logits: Tensor, rows: Array, bits: Array) -> None:
        changed = logits.to(DEVICE)
        ops.mask(changed, TokenMasks(rows, bits, np.zeros(rows.size, dtype=np.bool_)))
        logits.copy_(to_host(changed))

    cases.check_masks(mask, VOCAB_SIZE)


def test_log_probabilities_are_those_of_torch(ops: TritonSampling) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(4, VOCAB_SIZE, generator=generator).to(DEVICE)
    token_ids = torch.tensor([3, 299, 0, 7], device=DEVICE)
    for num_top in ([0, 0, 0, 0], [0, 5, 2, 20]):
        counts: Array = np.array(num_top, dtype=np.int32)
        expected = TorchSampling().gather_logprobs(logits, token_ids, counts)
        found = ops.gather_logprobs(logits, token_ids, counts)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(to_host(ours), to_host(theirs), atol=2e-6, rtol=0)


def sample(ops: SamplingOps, params: list[SamplingParams]) -> SampledTokens:
    """One step of sequences of 12 tokens, 5 of them prompt."""
    count, length, generator = len(params), 12, torch.Generator().manual_seed(5)
    columns = SlotSamplingParams(count, vocab_size=VOCAB_SIZE, eos_token_ids=[1])
    for slot, slot_params in enumerate(params):
        columns.set_row(slot, slot_params)
    tokens = torch.randint(0, 9, (count, length + 4), generator=generator, dtype=torch.int32)
    logits = torch.randn(count, VOCAB_SIZE, generator=generator) * 2
    logits[:, :9] += 6.0  # so that penalties change the result
    rows = SampledRows(
        slots=np.arange(count, dtype=np.int32)[::-1].copy(),
        num_prompt_tokens=np.full(count, 5, dtype=np.int32),
        num_tokens=np.full(count, length, dtype=np.int32),
    )
    sampler = Sampler(columns, tokens.to(DEVICE), ops, Transfers(DEVICE))
    return sampler.sample(logits.to(DEVICE), rows)


def test_the_sampler_matches_torch() -> None:
    params = [
        SamplingParams(temperature=0.0, seed=1),
        SamplingParams(temperature=0.0, seed=1, repetition_penalty=1.8, logprobs=3),
        SamplingParams(temperature=1.0, seed=2, frequency_penalty=0.7, presence_penalty=0.4),
        SamplingParams(temperature=0.8, seed=3, top_p=0.9, top_k=40, logprobs=0),
        SamplingParams(temperature=1.2, seed=4, min_p=0.1, no_repeat_ngram_size=2),
        SamplingParams(temperature=0.0, seed=5, min_tokens=16, logit_bias={1: 50.0, 7: 20.0}),
        SamplingParams(temperature=50.0, seed=6, allowed_token_ids=range(9, 30)),
        SamplingParams(temperature=0.0, seed=7, bad_words_token_ids=[[i] for i in range(9)]),
    ]
    ours = sample(TritonSampling(Transfers(DEVICE)), params)
    theirs = sample(TorchSampling(), params)
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()
    assert ours.logprobs is not None
    assert theirs.logprobs is not None
    for one, other in zip(ours.logprobs.tensors(), theirs.logprobs.tensors(), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)
