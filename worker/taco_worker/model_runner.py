"""Runs one step: from a plan to the model's input, through the model, to sampled tokens."""

import numpy as np
import torch
from torch import Tensor

from taco_proto.steps import IntArray, StepPlan
from taco_worker.input_batch import InputBatch, StepRows
from taco_worker.launched_step import LaunchedStep, PromptLogprobs, StepPart
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.prompt_rows import PromptRows, find_prompt_rows
from taco_worker.sampling.columns import Array
from taco_worker.sampling.logprobs import LogprobTable, gather_logprobs
from taco_worker.sampling.sampler import SampledRows, Sampler
from taco_worker.smaller_steps import run_smaller_if_memory_lacks
from taco_worker.transfers import Transfers

# Logits of so many numbers at a time for prompt log probabilities: 64 MiB.
_MAX_PROMPT_LOGITS = 2**24


class ModelRunner:
    """One model and its batch. Not thread safe.

    On a GPU a step is launched and not waited for: the next one may be launched behind it, whose
    input is this one's output on the device.
    """

    def __init__(self, model: StepModel, batch: InputBatch, transfers: Transfers) -> None:
        self._model = model
        self._batch = batch
        self._transfers = transfers
        self._sampler = Sampler(batch.sampling, batch.tokens.data, model.sampling, transfers)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Raises:
        PlanError: the plan does not fit the batch.
        """
        rows = self._batch.apply(plan)
        if not rows.slots.size:
            return LaunchedStep(plan, [], self._transfers)
        parts = run_smaller_if_memory_lacks(self._run, rows)
        token_ids = [part.token_ids for part in parts]
        self._batch.advance(rows, token_ids[0] if len(parts) == 1 else torch.cat(token_ids))
        return LaunchedStep(plan, parts, self._transfers)

    def _run(self, rows: StepRows) -> StepPart:
        """All of a step's rows, or some of them."""
        ends = np.cumsum(rows.num_new_tokens, dtype=np.int32)
        sampled = ends[rows.is_sampled] - 1
        prompt_rows = find_prompt_rows(self._batch, rows, ends)
        outputs = sampled if prompt_rows is None else np.union1d(sampled, prompt_rows.sources)
        hidden = self._model.forward(self._make_input(rows, ends, outputs))
        prompt = None
        if prompt_rows is not None:
            prompt = self._prompt_logprobs(
                prompt_rows, self._pick(hidden, outputs, prompt_rows.sources)
            )
            hidden = self._pick(hidden, outputs, sampled)
        slots = rows.slots[rows.is_sampled]
        token_ids, logprobs = self._sample(slots, hidden)
        return StepPart(slots, token_ids, logprobs, prompt)

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
            token_ids=batch.tokens.at(slots, positions),
            positions=positions,
            query_start=query_start,
            seq_lens=seq_lens,
            block_tables=batch.block_tables[rows.slots, :max_blocks],
            output_rows=outputs,
        )

    def _sample(self, slots: IntArray, hidden: Tensor) -> tuple[Tensor, LogprobTable | None]:
        batch = self._batch
        if not slots.size:
            return torch.empty(0, dtype=torch.int64, device=self._transfers.device), None
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

    def _prompt_logprobs(self, rows: PromptRows, hidden: Tensor) -> PromptLogprobs:
        """Log probabilities of the tokens of `rows`, each of which follows a row of `hidden`."""
        batch = self._batch
        num_top = batch.sampling.prompt_logprobs[rows.slots]
        token_ids = batch.tokens.at(rows.slots, rows.positions).long()
        chunk_size = max(1, _MAX_PROMPT_LOGITS // self._model.config.vocab_size)
        tables = []
        for start in range(0, rows.slots.size, chunk_size):
            chunk = slice(start, start + chunk_size)
            logits = self._model.compute_logits(hidden[chunk])
            tables.append(
                gather_logprobs(self._model.sampling, logits, token_ids[chunk], num_top[chunk])
            )
        return PromptLogprobs(rows.slots, rows.positions, tables)

    def _pick(self, hidden: Tensor, rows: Array, wanted: Array) -> Tensor:
        """Rows of `hidden`, which stand for the tokens `rows` (rising), that stand for `wanted`."""
        (index,) = self._transfers.upload(np.searchsorted(rows, wanted))
        return hidden[index]
