"""Runs one step: from a plan to the model's input, through the model, to sampled tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from taco_proto.logprobs import LogprobColumns
from taco_proto.steps import EMPTY, IntArray, StepOutput, StepPlan
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.input_batch import InputBatch, StepRows
from taco_worker.kv_memory import KVCache
from taco_worker.models.decoder import Decoder
from taco_worker.sampling.columns import Array, Feature
from taco_worker.sampling.logprobs import gather_logprobs
from taco_worker.sampling.sampler import SampledRows, Sampler

# Logits of so many numbers at a time for prompt log probabilities: 64 MiB.
_MAX_PROMPT_LOGITS = 2**24


@dataclass(frozen=True, slots=True)
class _ModelInput:
    """What the decoder takes, and where each row's tokens end in it.

    Attributes:
        ends: int64 [num_rows], host; a row's tokens are those before its end.
    """

    token_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    ends: Array


@dataclass(frozen=True, slots=True)
class _PromptLogprobs:
    slots: IntArray
    positions: IntArray
    columns: LogprobColumns


class ModelRunner:
    """One model with its KV cache and its batch. Not thread safe."""

    def __init__(self, decoder: Decoder, kv_cache: KVCache, batch: InputBatch) -> None:
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._batch = batch
        self._sampler = Sampler(batch.sampling, batch.token_ids)
        self._device = batch.token_ids.device

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepOutput:
        """Raises:
        PlanError: the plan does not fit the batch.
        """
        rows = self._batch.apply(plan)
        if not rows.slots.size:
            return StepOutput(epoch=plan.epoch, step_id=plan.step_id)
        inputs = self._make_input(rows)
        hidden = self._decoder(inputs.token_ids, inputs.positions, self._kv_cache, inputs.metadata)
        prompt = self._prompt_logprobs(rows, inputs, hidden)
        sampled_slots, token_ids, logprobs = self._sample(rows, inputs, hidden)
        self._batch.advance(rows, token_ids)
        return StepOutput(
            epoch=plan.epoch,
            step_id=plan.step_id,
            slots=sampled_slots,
            token_ids=token_ids.to(torch.int32).cpu().numpy(),
            logprobs=logprobs,
            prompt_logprob_slots=prompt.slots if prompt else EMPTY,
            prompt_logprob_positions=prompt.positions if prompt else EMPTY,
            prompt_logprobs=prompt.columns if prompt else None,
        )

    def _make_input(self, rows: StepRows) -> _ModelInput:
        """Whole columns at a time: a step of decodes costs the host no loop over sequences."""
        batch = self._batch
        ends = np.cumsum(rows.num_new_tokens, dtype=np.int64)
        num_rows, num_tokens = rows.slots.size, int(ends[-1])
        if num_tokens == num_rows:
            slots, positions = rows.slots, rows.num_computed_tokens
        else:
            slots = np.repeat(rows.slots, rows.num_new_tokens)
            first_positions = rows.num_computed_tokens - (ends - rows.num_new_tokens)
            positions = np.arange(num_tokens) + np.repeat(first_positions, rows.num_new_tokens)

        seq_lens = rows.num_computed_tokens + rows.num_new_tokens
        max_blocks = -(-int(seq_lens.max()) // batch.block_size)
        blocks = batch.block_tables[slots, positions // batch.block_size].astype(np.int64)
        query_start_loc = np.zeros(num_rows + 1, dtype=np.int32)
        query_start_loc[1:] = ends
        metadata = AttentionMetadata(
            query_start_loc=self._upload(query_start_loc),
            seq_lens=self._upload(seq_lens),
            block_tables=self._upload(batch.block_tables[rows.slots, :max_blocks]),
            kv_slot_mapping=self._upload(blocks * batch.block_size + positions % batch.block_size),
            query_lens_host=rows.num_new_tokens.tolist(),
            seq_lens_host=seq_lens.tolist(),
        )
        position_ids = self._upload(positions)
        token_ids = batch.token_ids[self._upload(slots), position_ids]
        return _ModelInput(token_ids, position_ids, metadata, ends)

    def _sample(
        self, rows: StepRows, inputs: _ModelInput, hidden: Tensor
    ) -> tuple[IntArray, Tensor, LogprobColumns | None]:
        slots = rows.slots[rows.is_sampled]
        if not slots.size:
            return EMPTY, torch.empty(0, dtype=torch.int64, device=self._device), None
        if slots.size < hidden.shape[0]:
            hidden = hidden[self._upload(inputs.ends[rows.is_sampled] - 1)]
        logits = self._decoder.compute_logits(hidden)
        batch = self._batch
        sampled = self._sampler.sample(
            logits,
            SampledRows(
                slots=slots,
                num_prompt_tokens=batch.num_prompt_tokens[slots],
                num_tokens=batch.num_tokens[slots],
            ),
        )
        return slots, sampled.token_ids, sampled.logprobs

    def _prompt_logprobs(
        self, rows: StepRows, inputs: _ModelInput, hidden: Tensor
    ) -> _PromptLogprobs | None:
        """Log probabilities of the prompt tokens that follow those of this step."""
        batch = self._batch
        is_asked = (batch.sampling.features[rows.slots] & Feature.PROMPT_LOGPROBS) != 0
        if not is_asked.any():
            return None
        slots: list[Array] = []
        positions: list[Array] = []  # of the tokens that are predicted
        sources: list[Array] = []  # rows of hidden
        for row in np.flatnonzero(is_asked):
            slot, first = rows.slots[row], rows.num_computed_tokens[row] + 1
            end = min(first + rows.num_new_tokens[row], batch.num_prompt_tokens[slot])
            predicted = np.arange(first, end, dtype=np.int32)
            slots.append(np.full(predicted.size, slot, dtype=np.int32))
            positions.append(predicted)
            sources.append(inputs.ends[row] - rows.num_new_tokens[row] + predicted - first)
        all_slots, all_positions = np.concatenate(slots), np.concatenate(positions)
        if not all_slots.size:
            return None
        columns = self._logprobs_at(hidden, np.concatenate(sources), all_slots, all_positions)
        return _PromptLogprobs(all_slots, all_positions, columns)

    def _logprobs_at(
        self, hidden: Tensor, sources: Array, slots: Array, positions: Array
    ) -> LogprobColumns:
        """Log probabilities of the tokens at (slots, positions), which follow `hidden[sources]`."""
        batch = self._batch
        num_top = batch.sampling.prompt_logprobs[slots]
        columns = LogprobColumns()
        chunk_size = max(1, _MAX_PROMPT_LOGITS // self._decoder.config.vocab_size)
        for start in range(0, sources.size, chunk_size):
            chunk = slice(start, start + chunk_size)
            logits = self._decoder.compute_logits(hidden[self._upload(sources[chunk])])
            token_ids = batch.token_ids[self._upload(slots[chunk]), self._upload(positions[chunk])]
            found = gather_logprobs(logits.log_softmax(-1), token_ids.long(), num_top[chunk])
            columns.num_entries += found.num_entries
            columns.token_ids += found.token_ids
            columns.logprobs += found.logprobs
            columns.ranks += found.ranks
        return columns

    def _upload(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)
