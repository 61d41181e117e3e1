"""Runs one step: builds the model's input, runs the model, verifies drafts and samples tokens."""

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from taco_kernels.native.draft_verification import accept
from taco_proto.steps import EMPTY, IntArray, StepOutput, StepPlan
from taco_worker.batch.input_batch import InputBatch, StepRows
from taco_worker.batch.prompt_logprobs import PromptLogprobRows, find_prompt_logprob_rows
from taco_worker.batch.step_input import last_of_each, make_input, output_tokens
from taco_worker.devices.copy_stream import EntryCopies
from taco_worker.devices.transfers import Transfers
from taco_worker.execution.decode_steps import DecodeSteps
from taco_worker.execution.forced_outputs import ForcedOutputs, find_forced_outputs
from taco_worker.execution.launched_step import (
    KeptTokens,
    LaunchedStep,
    PromptLogprobs,
    StepPart,
    Verified,
)
from taco_worker.execution.out_of_memory import split_on_out_of_memory
from taco_worker.grammars.slot_matchers import SlotMatchers
from taco_worker.kv_tiers.host_block_store import HostBlockStore
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.processors.slot_processors import SlotProcessors, StepProcessors
from taco_worker.sampling.logprobs import LogprobTable, OwnLogprobs, gather_logprobs
from taco_worker.sampling.sampler import SampledRows, Sampler
from taco_worker.sampling.slot_params import CHANGES_LOGITS, NO_LOGPROBS, Array, Feature
from taco_worker.sampling.token_masks import TokenMasks
from taco_worker.sampling.typical_acceptance import (
    Candidates,
    TypicalAcceptance,
    draft_candidates,
)
from taco_worker.speculation.drafter import ComputedTokens
from taco_worker.speculation.grammar_drafter import GrammarDrafter
from taco_worker.speculation.speculator import Speculator

# Maximum number of logits computed at once for prompt log probabilities: 64 MiB.
_MAX_PROMPT_LOGITS = 2**24

# A sequence with none of these takes the most likely token, of its mask if it has a grammar.
_NOT_GREEDY = int(~(Feature.LOGPROBS | Feature.PROMPT_LOGPROBS | Feature.GRAMMAR))


class ModelRunner:
    """Runs the steps of one model and its batch. Not thread safe.

    On a GPU a step is launched without waiting, and the next one reads its tokens on the device.
    """

    def __init__(
        self,
        model: StepModel,
        batch: InputBatch,
        transfers: Transfers,
        host_store: HostBlockStore,
        speculator: Speculator | None = None,
        typical: TypicalAcceptance | None = None,
        matchers: SlotMatchers | None = None,
        grammar_drafter: GrammarDrafter | None = None,
        processors: SlotProcessors | None = None,
        decode_steps: DecodeSteps | None = None,
    ) -> None:
        """
        Args:
            host_store: has no blocks if there is no host tier.
            speculator: None disables speculative decoding.
            typical: None accepts a draft only if the target samples the same token.
            matchers: follow the sequences with a grammar; None: no sequence has one.
            grammar_drafter: drafts forced tokens where no speculator does; None: nothing does.
            processors: follow the sequences with logits processors; None: no sequence has one.
            decode_steps: run usual steps at less cost for the host; with a speculator, while it
                rests.
        """
        self._model = model
        self._batch = batch
        self._transfers = transfers
        self._host_store = host_store
        self._speculator = speculator
        self._matchers = matchers
        self._grammar_drafter = grammar_drafter
        self._processors = processors
        self._decode_steps = decode_steps
        self._sampler = Sampler(
            batch.sampling, batch.tokens.data, model.sampling, transfers, typical
        )

    def launch(self, plan: StepPlan) -> LaunchedStep | StepOutput:
        """Launch a step, or run it at once and return its output.

        Raises:
            PlanError: the plan does not fit the batch or the tiers.
        """
        output = self._decode(plan)
        return self._launch(plan) if output is None else output

    def _decode(self, plan: StepPlan) -> StepOutput | None:
        """Run the plan if it is a usual decode step. Returns None, and changes nothing, if not."""
        if self._decode_steps is None or self._matchers or self._processors:
            return None
        speculator = self._speculator
        if speculator is None:
            return self._decode_steps.run(plan)
        if not speculator.may_rest:
            return None
        started_at = time.perf_counter()
        output = self._decode_steps.run(replace(plan, max_drafts=EMPTY))
        if output is not None:
            speculator.rest(output, time.perf_counter() - started_at)
        return output

    @torch.inference_mode()
    def _launch(self, plan: StepPlan) -> LaunchedStep:
        if plan.copies is not None:
            self._host_store.check(plan.copies)
        rows = self._batch.apply(plan)
        if self._matchers is not None:
            self._matchers.apply(plan)
        if self._processors is not None:
            self._processors.apply(plan)
        pending_copies = EntryCopies([])
        if plan.copies is not None:
            pending_copies = self._host_store.copy(plan.copies)
            self._model.set_pending_copies(pending_copies)
        try:
            parts, num_invalid_drafts = self._compute(plan, rows)
        finally:
            pending_copies.wait()  # the output and the next step follow all copies
        return LaunchedStep(plan, parts, self._transfers, num_invalid_drafts)

    def _compute(self, plan: StepPlan, rows: StepRows) -> tuple[list[StepPart], int]:
        """Run the rows. Returns their parts and the number of invalid drafts that were dropped."""
        if self._speculator is not None:
            self._speculator.apply(plan)
            parts = self._speculate(self._speculator, rows, plan)
            return parts, self._speculator.take_num_invalid()
        if self._grammar_drafter is not None:
            rows = self._grammar_drafter.draft(rows)
        parts = self._run_parts(rows)
        if parts:
            self._advance(rows, parts)
        return parts, 0

    def _advance(self, rows: StepRows, parts: list[StepPart]) -> Tensor:
        """Append the parts' tokens to their sequences. Returns the tokens, on the device."""
        token_ids = [part.token_ids for part in parts]
        tokens = token_ids[0] if len(parts) == 1 else torch.cat(token_ids)
        if (verified := parts[0].verified) is not None:
            self._batch.advance_by(rows, verified.num_tokens, tokens)
        else:  # the step had no drafts, or dropped them for lack of memory
            self._batch.advance(rows if rows.trees is None else rows.without_drafts(), tokens)
        return tokens

    def _run_parts(self, rows: StepRows) -> list[StepPart]:
        if not rows.slots.size:
            return []
        if self._batch.states is not None:  # a step that failed may have advanced some of them
            return [self._run(rows)]
        return split_on_out_of_memory(self._run, rows)

    def _speculate(self, speculator: Speculator, rows: StepRows, plan: StepPlan) -> list[StepPart]:
        """Run a step with drafts. It waits for the tokens, because the next drafts follow them."""
        rows = speculator.draft(rows, plan.drafts)
        parts = self._run_parts(rows)
        if not parts:
            return parts
        token_ids = self._advance(rows, parts)
        slots = rows.slots[rows.is_sampled]
        if (verified := parts[0].verified) is not None:
            num_tokens, host_ids = verified.num_tokens, verified.token_ids
        else:
            num_tokens, host_ids = np.ones_like(slots), self._to_host(token_ids)
        for part in parts:
            if part.kept is not None:
                speculator.observe(self._computed(part.kept))
        num_drafts = np.zeros_like(slots) if verified is None else verified.num_drafts
        # A row without a valid token ends with an error, so the speculator may learn any id.
        speculator.learn(slots, num_tokens, np.maximum(host_ids, 0), num_drafts)
        # A step of prompt chunks returns no token to wait for: the device may still be working.
        is_done = slots.size > 0 or not self._transfers.overlaps
        speculator.end_step(int(rows.num_new_tokens.sum()), is_done=is_done)
        return parts

    def _run(self, rows: StepRows) -> StepPart:
        """Run all of a step's rows, or one part after a split."""
        ends = np.cumsum(rows.num_new_tokens, dtype=np.int32)
        chosen = output_tokens(rows, ends)
        prompt_rows = find_prompt_logprob_rows(self._batch, rows, ends)
        outputs = chosen if prompt_rows is None else np.union1d(chosen, prompt_rows.sources)
        hidden_layers = None if self._speculator is None else self._speculator.hidden_layers
        if hidden_layers == ():
            outputs = np.arange(ends[-1], dtype=np.int32)
        inputs = make_input(self._batch, rows, ends, outputs, self._transfers)
        pending_masks = None if self._matchers is None else self._matchers.begin(rows)
        processors = None if self._processors is None else self._processors.begin(rows)
        is_plain = rows.trees is None and pending_masks is None and processors is None
        if is_plain and prompt_rows is None and hidden_layers is None:
            part = self._run_greedy(rows, inputs)
            if part is not None:
                return part
        hidden = whole = self._model.forward(inputs)
        prompt = None
        if prompt_rows is not None:
            prompt = self._prompt_logprobs(
                prompt_rows, self._pick(hidden, outputs, prompt_rows.sources)
            )
        if outputs.size != chosen.size:
            hidden = self._pick(hidden, outputs, chosen)
        masks = None if pending_masks is None else pending_masks.result()
        token_masks = None if masks is None else masks.masks
        num_tokens = inputs.positions[chosen] + 1
        forced = None
        if rows.are_forced and processors is None:
            forced = find_forced_outputs(rows, self._batch.sampling)
        if forced is None:
            token_ids, logprobs = self._sample(rows, num_tokens, hidden, token_masks, processors)
        else:
            token_ids, logprobs = self._sample_rest(forced, num_tokens, hidden, token_masks), None
        part = StepPart(
            rows.slots[rows.is_sampled],
            token_ids,
            logprobs,
            prompt,
            errors=() if masks is None else masks.errors,
            failures={} if masks is None else masks.failures,
        )
        if processors is not None:
            errors = processors.errors + part.errors
            failures = {**processors.failures, **part.failures}
            part = replace(part, errors=errors, failures=failures)
        if rows.trees is not None:
            part = self._verify(rows, inputs, chosen, part)
        if hidden_layers is not None:
            of_all = self._model.kept_hidden if hidden_layers else whole
            part = replace(part, kept=self._keep(rows, ends, chosen, part.verified, of_all))
        return part

    def _run_greedy(self, rows: StepRows, inputs: ModelInput) -> StepPart | None:
        """Run a step whose rows all take the most likely token; None: they do not.

        Usual steps are like this. The host decides it before the model runs, not between the model
        and the logits.
        """
        slots, sampling = rows.slots[rows.is_sampled], self._batch.sampling
        num_top = sampling.logprobs[slots]
        if not slots.size or (sampling.features[slots] & _NOT_GREEDY).any():
            return None
        if (most := num_top.max()) > 0:
            return None
        if most == NO_LOGPROBS:
            token_ids, _ = self._model.forward_most_likely(inputs)
            return StepPart(slots, token_ids, None, None)
        own = OwnLogprobs(num_top, self._transfers)
        token_ids, values = self._model.forward_most_likely(inputs, gives_logprobs=True)
        assert values is not None
        return StepPart(slots, token_ids, own.table(token_ids, values), None)

    def _verify(
        self, rows: StepRows, inputs: ModelInput, chosen: IntArray, part: StepPart
    ) -> StepPart:
        """Reduce the part to the tokens after accepted drafts."""
        assert rows.trees is not None
        num_drafts = rows.trees.num_nodes[rows.is_sampled]
        end_token_ids = [self._batch.sampling.end_token_ids[slot] for slot in part.slots]
        if rows.are_forced:  # without waiting for the device
            kept = np.arange(part.token_ids.shape[0], dtype=np.int32)
            verified = Verified(kept, num_drafts + 1, num_drafts, EMPTY, end_token_ids)
            return replace(part, verified=verified)
        trees = replace(rows.trees, num_nodes=num_drafts)
        token_ids = self._to_host(part.token_ids)
        outcome = accept(trees, token_ids)
        if inputs.parents is not None:
            self._model.keep_accepted(inputs, chosen[outcome.kept])
        (index,) = self._transfers.upload(outcome.kept)
        return replace(
            part,
            token_ids=part.token_ids[index],
            verified=Verified(
                outcome.kept,
                outcome.num_tokens,
                num_drafts,
                token_ids[outcome.kept],
                end_token_ids,
            ),
        )

    def _keep(
        self,
        rows: StepRows,
        ends: IntArray,
        chosen: IntArray,
        verified: Verified | None,
        hidden: Tensor,
    ) -> KeptTokens:
        """`hidden`: the hidden states of all tokens of the step."""
        if verified is None:
            return KeptTokens(rows.slots, rows.num_new_tokens, rows.num_computed_tokens, hidden)
        assert rows.trees is not None
        is_kept = np.ones(int(ends[-1]), dtype=np.bool_)
        is_kept[last_of_each(ends, rows.trees.num_nodes)] = False
        is_kept[chosen[verified.kept]] = True
        kept = np.flatnonzero(is_kept)
        of_row = np.repeat(np.arange(rows.slots.size), rows.num_new_tokens)
        num_tokens = np.bincount(of_row[kept], minlength=rows.slots.size).astype(np.int32)
        (index,) = self._transfers.upload(kept)
        return KeptTokens(rows.slots, num_tokens, rows.num_computed_tokens, hidden[index])

    def _computed(self, kept: KeptTokens) -> ComputedTokens:
        """Add the next token of each kept token; the batch holds them all by now."""
        slots = np.repeat(kept.slots, kept.num_tokens)
        before = np.repeat(np.cumsum(kept.num_tokens) - kept.num_tokens, kept.num_tokens)
        places = np.arange(slots.size) - before
        positions = (np.repeat(kept.positions, kept.num_tokens) + places + 1).astype(np.int32)
        following = self._to_host(self._batch.tokens.at(slots, positions))
        return ComputedTokens(kept.slots, kept.num_tokens, kept.positions, following, kept.hidden)

    def _sample(
        self,
        rows: StepRows,
        num_tokens: IntArray,
        hidden: Tensor,
        masks: TokenMasks | None,
        processors: StepProcessors | None,
    ) -> tuple[Tensor, LogprobTable | None]:
        """`num_tokens`: the number of tokens before each sampled token."""
        candidates = None
        if rows.trees is not None:
            candidates = draft_candidates(rows.trees, rows.is_sampled)
        slots = rows.output_slots()
        return self._sample_slots(slots, num_tokens, hidden, masks, candidates, processors)

    def _sample_rest(
        self, forced: ForcedOutputs, num_tokens: IntArray, hidden: Tensor, masks: TokenMasks | None
    ) -> Tensor:
        """Sample the tokens that no grammar forces, and return all."""
        rest = forced.rest
        token_ids, index = self._transfers.upload(forced.token_ids, rest)
        if masks is not None:
            masks = masks.take(rest)
        sampled, _ = self._sample_slots(
            forced.slots, num_tokens[rest], hidden[index], masks, None, None
        )
        return token_ids.index_copy_(0, index, sampled.long())

    def _sample_slots(
        self,
        slots: IntArray,
        num_tokens: IntArray,
        hidden: Tensor,
        masks: TokenMasks | None,
        candidates: Candidates | None,
        processors: StepProcessors | None,
    ) -> tuple[Tensor, LogprobTable | None]:
        """Sample a token for each of `slots`, which may occur several times."""
        batch = self._batch
        if not slots.size:
            return torch.empty(0, dtype=torch.int64, device=self._transfers.device), None
        features, num_top = batch.sampling.features[slots], batch.sampling.logprobs[slots]
        # Log probabilities are those of all tokens.
        most_logprobs = 0 if masks is None else NO_LOGPROBS
        if not (features & _NOT_GREEDY).any() and num_top.max() <= most_logprobs:
            return self._most_likely(hidden, num_top, masks)
        early_masks = None  # the model may skip what they ban
        if num_top.max() == NO_LOGPROBS and not (features & CHANGES_LOGITS).any():
            early_masks, masks = masks, None
        sampled = self._sampler.sample(
            self._model.compute_logits(hidden, early_masks),
            SampledRows(
                slots=slots,
                num_prompt_tokens=batch.num_prompt_tokens[slots],
                num_tokens=num_tokens,
            ),
            candidates,
            masks,
            None if processors is None else processors.apply,
        )
        return sampled.token_ids, sampled.logprobs

    def _most_likely(
        self, hidden: Tensor, num_top: Array, masks: TokenMasks | None
    ) -> tuple[Tensor, LogprobTable | None]:
        """Sample greedily without keeping logits, for rows that need their own token's logprob.

        Args:
            num_top: as in `LogprobTable`, at most 0; with masks no row has log probabilities.
        """
        if num_top.max() == NO_LOGPROBS:
            return self._model.most_likely(hidden, masks), None
        token_ids, values = self._model.most_likely_logprobs(hidden)
        return token_ids, OwnLogprobs(num_top, self._transfers).table(token_ids, values)

    def _prompt_logprobs(self, rows: PromptLogprobRows, hidden: Tensor) -> PromptLogprobs:
        """Log probabilities of the tokens of `rows`; row i of `hidden` predicts token i."""
        batch = self._batch
        num_top = batch.sampling.prompt_logprobs[rows.slots]
        token_ids = batch.tokens.at(rows.slots, rows.positions).long()
        chunk_size = max(1, _MAX_PROMPT_LOGITS // self._model.plan.vocab_size)
        tables = []
        for start in range(0, rows.slots.size, chunk_size):
            chunk = slice(start, start + chunk_size)
            logits = self._model.compute_logits(hidden[chunk])
            tables.append(
                gather_logprobs(self._model.sampling, logits, token_ids[chunk], num_top[chunk])
            )
        return PromptLogprobs(rows.slots, rows.positions, tables)

    def _to_host(self, token_ids: Tensor) -> IntArray:
        """int32 on the host, through pinned memory. Waits for the device, as drafting must."""
        (host,) = self._transfers.download(token_ids).wait()
        return host.numpy().astype(np.int32)

    def _pick(self, hidden: Tensor, rows: Array, wanted: Array) -> Tensor:
        """Select the rows of `hidden` for the tokens `wanted`; its rows are the tokens `rows`."""
        (index,) = self._transfers.upload(np.searchsorted(rows, wanted))
        return hidden[index]
