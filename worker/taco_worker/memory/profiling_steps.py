"""The largest possible steps, run once at start to measure the GPU memory that a step needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.sampling_metadata import Penalties, SamplingMetadata
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import EMPTY, IntArray, JoinedSequences
from taco_worker.devices.transfers import Transfers
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.models.step_states import StepStates
from taco_worker.sampling.token_masks import TokenMasks, num_words
from taco_worker.sampling.typical_acceptance import Candidates, TypicalAcceptance
from taco_worker.speculation.drafter import ComputedTokens, Drafter


@dataclass(frozen=True, slots=True)
class ProfilingSteps:
    """The largest possible steps, with a KV cache of one block.

    Attributes:
        largest: the step with the most tokens.
        verification: the step with the most drafts; None without speculative decoding.
        drafter: the drafter on the worker, if any.
        typical: None if drafts are verified exactly.
    """

    largest: ModelInput
    verification: ModelInput | None
    drafter: Drafter | None
    typical: TypicalAcceptance | None
    max_num_seqs: int
    max_model_len: int
    max_logprobs: int

    def run(self, model: StepModel, device: torch.device) -> None:
        """Run both steps with every option of a request, so that all memory is counted."""
        # A substitute for the token table, which is allocated later and stays.
        shape = (self.max_num_seqs, self.max_model_len)
        tokens = torch.zeros(shape, dtype=torch.int32, device=device)
        run_with_all_options(model, self.largest, tokens, self.max_logprobs, self.drafter)
        if self.verification is not None:
            run_with_all_options(
                model, self.verification, tokens, self.max_logprobs, self.drafter, self.typical
            )


def run_with_all_options(
    model: StepModel,
    step: ModelInput,
    tokens: Tensor,
    max_logprobs: int,
    drafter: Drafter | None = None,
    typical: TypicalAcceptance | None = None,
) -> None:
    """Run a step with every option that a request may have, for two reasons: all memory is counted,
    and no request waits for a kernel to compile. `tokens`: int32 [max_num_seqs, max_model_len]."""
    chosen = step.output_rows
    hidden_layers = None if drafter is None else drafter.hidden_layers
    if hidden_layers == ():
        step = replace(step, output_rows=np.arange(step.positions.size, dtype=np.int32))
    hidden = whole = model.forward(step)
    if step.output_rows.size != chosen.size:
        hidden = whole[torch.from_numpy(chosen).to(whole.device)]
    of_chosen = np.searchsorted(step.query_start, chosen, side="right") - 1
    sequences: IntArray = of_chosen.astype(np.int32)
    _sample_with_all_options(model, hidden, sequences, tokens, max_logprobs, typical)
    if step.parents is not None:
        model.keep_accepted(step, chosen)
    if drafter is not None and hidden_layers is not None:
        _run_drafter(drafter, step, model.kept_hidden if hidden_layers else whole)


def _sample_with_all_options(
    model: StepModel,
    hidden: Tensor,
    sequences: IntArray,
    tokens: Tensor,
    max_logprobs: int,
    typical: TypicalAcceptance | None,
) -> None:
    """Sample one token of these sequences for each row of `hidden`."""
    model.most_likely(hidden)
    logits = model.compute_logits(hidden)
    raw_logits = logits.clone()
    count = logits.shape[0]

    def column(value: float, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.full(count, value, dtype=dtype)

    model.sampling.penalize(
        logits,
        tokens,
        Penalties(
            rows=np.arange(count),
            sequences=sequences,
            starts=column(1, np.int32),
            lengths=column(2, np.int32),
            repetition=column(1.1, np.float32),
            presence=column(0.1, np.float32),
            frequency=column(0.1, np.float32),
            ngram_size=column(2, np.int32),
        ),
    )
    all_tokens = np.full((count, num_words(logits.shape[1])), -1, dtype=np.int32)
    no_row = np.zeros(count, dtype=np.bool_)
    model.sampling.mask(logits, TokenMasks(np.arange(count), all_tokens, no_row))
    metadata = SamplingMetadata(
        temperature=column(1.0, np.float32),
        min_p=column(0.01, np.float32),
        top_k=column(50, np.int32),
        top_p=column(0.9, np.float32),
        uniforms=column(0.5, np.float64),
    )
    token_ids = model.sampling.sample(logits, metadata)
    if typical is not None:
        drafts = Candidates(np.arange(count), np.zeros(count, dtype=np.int64))
        transfers = Transfers(logits.device)
        random = replace(SamplingMetadata.greedy(count), temperature=column(1.0, np.float32))
        token_ids = typical.prefer(logits, random, token_ids, drafts, transfers)
    model.sampling.sample(logits, SamplingMetadata.greedy(count))
    num_top = column(min(max_logprobs, logits.shape[1]), np.int32)
    model.sampling.gather_logprobs(raw_logits, token_ids, num_top)


def _run_drafter(drafter: Drafter, step: ModelInput, hidden: Tensor) -> None:
    """Make drafts after a step whose sequences have just joined; `hidden` of all its tokens."""
    num_tokens = np.diff(step.query_start)
    slots = np.arange(num_tokens.size, dtype=np.int32)
    zeros, ones = np.zeros_like(slots), np.ones_like(slots)
    next_token_ids = np.zeros(step.positions.size, dtype=np.int32)
    drafter.join(
        JoinedSequences(
            slots=slots,
            num_prompt_tokens=num_tokens,
            num_tokens=num_tokens,
            num_computed_tokens=zeros,
            token_ids=next_token_ids,
            num_blocks=zeros,
            block_ids=EMPTY,
            sampling=(SamplingParams(),) * slots.size,
        )
    )
    drafter.observe(ComputedTokens(slots, num_tokens, zeros, next_token_ids, hidden))
    drafter.append(slots, ones, zeros)
    drafter.draft(slots, ones * np.int32(drafter.max_draft_tokens))
    drafter.leave(slots)
    drafter.clear()


def largest_step(
    transfers: Transfers,
    *,
    max_num_seqs: int,
    num_tokens: int,
    max_model_len: int,
    has_states: bool = False,
) -> ModelInput:
    """A step with the most tokens and sequences, all in KV block 0 and with the first adapter.

    The results are meaningless; the memory does not depend on them.
    """
    num_seqs = min(max_num_seqs, num_tokens)
    lens = np.full(num_seqs, num_tokens // num_seqs, dtype=np.int32)
    lens[: num_tokens % num_seqs] += 1
    lens = np.minimum(lens, max_model_len)
    query_start = np.zeros(num_seqs + 1, dtype=np.int32)
    query_start[1:] = np.cumsum(lens)
    positions = np.concatenate([np.arange(each, dtype=np.int32) for each in lens])
    (token_ids,) = transfers.upload(np.zeros(positions.size, dtype=np.int32))
    return ModelInput(
        token_ids=token_ids,
        positions=positions,
        query_start=query_start,
        seq_lens=lens,
        # Enough entries for every supported block size.
        block_tables=np.zeros((num_seqs, -(-int(lens.max()) // 8)), dtype=np.int32),
        output_rows=query_start[1:] - 1,
        adapter_ids=np.zeros_like(positions),
        states=StepStates.of_new(num_seqs) if has_states else None,
    )


def largest_verification(
    transfers: Transfers,
    *,
    max_num_seqs: int,
    num_tokens: int,
    max_model_len: int,
    num_drafts: int,
    has_branches: bool,
) -> ModelInput:
    """The largest step in which each sequence verifies `num_drafts` drafts, within `num_tokens`
    tokens a step: a token is sampled after each of them."""
    step = largest_step(
        transfers,
        max_num_seqs=max_num_seqs,
        num_tokens=min(num_tokens, max_num_seqs * (1 + num_drafts)),
        max_model_len=min(max_model_len, 1 + num_drafts),
    )
    step = replace(step, output_rows=np.arange(step.positions.size, dtype=np.int32))
    if not has_branches:
        return step
    # Every draft is a child of the sequence's last token.
    roots = step.query_start[:-1]
    parents = np.repeat(roots, np.diff(step.query_start))
    parents[roots] = -1
    return replace(step, positions=(parents >= 0).astype(np.int32), parents=parents)
