"""Runs usual decode steps, with a few native calls instead of many array operations."""

from __future__ import annotations

import numpy as np

from taco_kernels.native.decode_rows import DecodeRows, SlotColumns
from taco_proto.logprobs import LogprobColumns
from taco_proto.steps import IntArray, RowError, StepOutput, StepPlan
from taco_worker.batch.input_batch import InputBatch
from taco_worker.batch.token_table import HostTokenTable
from taco_worker.execution.launched_step import find_row_errors
from taco_worker.models.step_model import DecodeModel, StepModel
from taco_worker.sampling.slot_params import Feature

# A row may want the log probability of the token that it samples. Those of its prompt are done.
_NOT_GREEDY = int(~(Feature.LOGPROBS | Feature.PROMPT_LOGPROBS))


class DecodeSteps:
    """Runs the steps in which no sequence enters or leaves, and each row takes its likeliest token.

    Most steps are like this. `ModelRunner` runs all others, and those that this class cannot check:
    it rejects nothing itself. The results are equal in every bit.
    """

    def __init__(self, batch: InputBatch, token_ids: IntArray, model: DecodeModel) -> None:
        """
        Args:
            token_ids: the batch's tokens on the host, [max_num_seqs, max_model_len].
        """
        self._batch = batch
        self._rows = DecodeRows(
            SlotColumns.of(
                block_size=batch.block_size,
                num_kv_blocks=batch.num_kv_blocks,
                not_greedy=_NOT_GREEDY,
                is_occupied=batch.is_occupied,
                features=batch.sampling.features,
                num_logprobs=batch.sampling.logprobs,
                adapter_ids=batch.adapter_ids,
                num_tokens=batch.num_tokens,
                num_computed_tokens=batch.num_computed_tokens,
                num_blocks=batch.num_blocks,
                block_tables=batch.block_tables,
                token_ids=token_ids,
            )
        )

        self._decode = model.decoding(self._rows)

    def run(self, plan: StepPlan) -> StepOutput | None:
        """Run the plan if it is a usual decode step. Returns None, and changes nothing, if not."""
        if plan.joined is not None or plan.copies is not None or plan.drafts is not None:
            return None
        if plan.left_slots.size or plan.max_drafts.size or plan.saved_slots.size:
            return None
        states = self._batch.states
        if states is not None and not states.are_own(plan.slots):
            return None
        rows = self._rows
        appended_slots = plan.appended_slots
        if not rows.begin(plan.slots, plan.num_tokens, appended_slots, plan.appended_blocks):
            return None
        try:
            self._decode()
        except MemoryError:  # the usual way splits such a step, or fails it
            np.subtract.at(self._batch.num_blocks, appended_slots, 1)
            return None
        rows.end()
        return self._output(plan, rows)

    def _output(self, plan: StepPlan, rows: DecodeRows) -> StepOutput:
        token_ids, logprobs = rows.sampled(), None
        errors: tuple[RowError, ...] = ()
        if rows.fields.gives_logprobs:
            num_entries, entry_ids, values = rows.logprob_entries()
            logprobs = LogprobColumns(num_entries, entry_ids, values, np.ones_like(entry_ids))
        if rows.fields.has_failed_rows:
            errors = find_row_errors(plan.slots, token_ids)
            token_ids = np.maximum(token_ids, 0)
        return StepOutput(
            epoch=plan.epoch,
            step_id=plan.step_id,
            slots=plan.slots,
            token_ids=token_ids,
            logprobs=logprobs,
            row_errors=errors,
        )


def make_decode_steps(model: StepModel, batch: InputBatch) -> DecodeSteps | None:
    """None: the model computes on a device, or runs no decode steps on host arrays."""
    if not isinstance(model, DecodeModel) or not isinstance(batch.tokens, HostTokenTable):
        return None
    return DecodeSteps(batch, batch.tokens.array, model)
