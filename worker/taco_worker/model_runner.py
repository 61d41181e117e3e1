"""Runs one step: from a plan to the model's input, through the model, to sampled tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from taco_proto.logprobs import LogprobColumns
from taco_proto.steps import EMPTY, IntArray, StepOutput, StepPlan
from taco_worker.input_batch import InputBatch, StepRows
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.sampling.columns import Array, Feature
from taco_worker.sampling.logprobs import gather_logprobs
from taco_worker.sampling.sampler import SampledRows, Sampler

# Logits of so many numbers at a time for prompt log probabilities: 64 MiB.
_MAX_PROMPT_LOGITS = 2**24


@dataclass(frozen=True, slots=True)
class _PromptRows:
    """Prompt tokens whose log probabilities are asked for.

    Attributes:
        slots, positions: of the tokens that are predicted.
        sources: the step's tokens that predict them.
    """

    slots: IntArray
    positions: IntArray
    sources: IntArray


class ModelRunner:
    """One model and its batch. Not thread safe."""

    def __init__(self, model: StepModel, batch: InputBatch) -> None:
        self._model = model
        self._batch = batch
        self._sampler = Sampler(batch.sampling, batch.token_ids, model.sampling)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepOutput:
        """Raises:
        PlanError: the plan does not fit the batch.
        """
        rows = self._batch.apply(plan)
        if not rows.slots.size:
            return StepOutput(epoch=plan.epoch, step_id=plan.step_id)
        ends = np.cumsum(rows.num_new_tokens, dtype=np.int32)
        sampled = ends[rows.is_sampled] - 1
        prompt = self._prompt_rows(rows, ends)
        outputs = sampled if prompt is None else np.union1d(sampled, prompt.sources)
        hidden = self._model.forward(self._make_input(rows, ends, outputs))
        prompt_logprobs = None
        if prompt is not None:
            prompt_logprobs = self._prompt_logprobs(prompt, _pick(hidden, outputs, prompt.sources))
            hidden = _pick(hidden, outputs, sampled)
        slots = rows.slots[rows.is_sampled]
        token_ids, logprobs = self._sample(slots, hidden)
        self._batch.advance(rows, token_ids)
        return StepOutput(
            epoch=plan.epoch,
            step_id=plan.step_id,
            slots=slots,
            token_ids=token_ids.to(torch.int32).cpu().numpy(),
            logprobs=logprobs,
            prompt_logprob_slots=prompt.slots if prompt else EMPTY,
            prompt_logprob_positions=prompt.positions if prompt else EMPTY,
            prompt_logprobs=prompt_logprobs,
        )

    def _make_input(self, rows: StepRows, ends: IntArray, outputs: IntArray) -> ModelInput:
        """Whole columns at a time: a step of decodes costs the host no loop over sequences."""
        batch = self._batch
        num_rows, num_tokens = rows.slots.size, int(ends[-1])
        if num_tokens == num_rows:
            slots, positions = rows.slots, rows.num_computed_tokens
        else:
            slots = np.repeat(rows.slots, rows.num_new_tokens)
            first_positions = rows.num_computed_tokens - (ends - rows.num_new_tokens)
            positions = np.repeat(first_positions, rows.num_new_tokens)
            positions += np.arange(num_tokens, dtype=np.int32)
        seq_lens = rows.num_computed_tokens + rows.num_new_tokens
        max_blocks = -(-int(seq_lens.max()) // batch.block_size)
        query_start = np.zeros(num_rows + 1, dtype=np.int32)
        query_start[1:] = ends
        return ModelInput(
            token_ids=batch.tokens_at(slots, positions),
            positions=positions,
            query_start=query_start,
            seq_lens=seq_lens,
            block_tables=batch.block_tables[rows.slots, :max_blocks],
            output_rows=outputs,
        )

    def _sample(self, slots: IntArray, hidden: Tensor) -> tuple[Tensor, LogprobColumns | None]:
        batch = self._batch
        if not slots.size:
            return torch.empty(0, dtype=torch.int64), None
        if not batch.sampling.features[slots].any():
            return self._model.most_likely(hidden), None
        sampled = self._sampler.sample(
            self._model.compute_logits(hidden),
            SampledRows(
                slots=slots,
                num_prompt_tokens=batch.num_prompt_tokens[slots],
                num_tokens=batch.num_tokens[slots],
            ),
        )
        return sampled.token_ids, sampled.logprobs

    def _prompt_rows(self, rows: StepRows, ends: IntArray) -> _PromptRows | None:
        """The prompt tokens that follow those of this step, where their sequences ask for them."""
        batch = self._batch
        is_asked = (batch.sampling.features[rows.slots] & Feature.PROMPT_LOGPROBS) != 0
        if not is_asked.any():
            return None
        slots: list[IntArray] = []
        positions: list[IntArray] = []
        sources: list[IntArray] = []
        for row in np.flatnonzero(is_asked):
            slot, first = rows.slots[row], rows.num_computed_tokens[row] + 1
            end = min(first + rows.num_new_tokens[row], batch.num_prompt_tokens[slot])
            predicted = np.arange(first, end, dtype=np.int32)
            slots.append(np.full(predicted.size, slot, dtype=np.int32))
            positions.append(predicted)
            sources.append(ends[row] - rows.num_new_tokens[row] + predicted - first)
        found = _PromptRows(*(np.concatenate(column) for column in (slots, positions, sources)))
        return found if found.slots.size else None

    def _prompt_logprobs(self, rows: _PromptRows, hidden: Tensor) -> LogprobColumns:
        """Log probabilities of the tokens of `rows`, each of which follows a row of `hidden`."""
        batch = self._batch
        num_top = batch.sampling.prompt_logprobs[rows.slots]
        columns = LogprobColumns()
        chunk_size = max(1, _MAX_PROMPT_LOGITS // self._model.config.vocab_size)
        for start in range(0, rows.slots.size, chunk_size):
            chunk = slice(start, start + chunk_size)
            logits = self._model.compute_logits(hidden[chunk])
            token_ids = batch.tokens_at(rows.slots[chunk], rows.positions[chunk])
            found = gather_logprobs(
                self._model.sampling, logits, torch.from_numpy(token_ids).long(), num_top[chunk]
            )
            columns.num_entries += found.num_entries
            columns.token_ids += found.token_ids
            columns.logprobs += found.logprobs
            columns.ranks += found.ranks
        return columns


def _pick(hidden: Tensor, rows: Array, wanted: Array) -> Tensor:
    """Rows of `hidden`, which stand for the tokens `rows` (rising), that stand for `wanted`."""
    return hidden[torch.from_numpy(np.searchsorted(rows, wanted))]
