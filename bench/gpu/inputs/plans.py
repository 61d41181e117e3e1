"""Step plans like a scheduler's, for batches of equal sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import IntArray, JoinedSequences, PlannedDrafts, StepPlan, WorkerInfo


@dataclass(slots=True)
class Plans:
    """Plans of one epoch; each is the next step.

    Attributes:
        prompt_len: tokens of each prompt.
        room: tokens that each sequence may grow by.
    """

    info: WorkerInfo
    prompt_len: int
    room: int
    _step_id: int = 0

    @property
    def most_sequences(self) -> int:
        """Maximum number of sequences: the worker's rows and blocks limit it."""
        return min(self.info.max_num_seqs, self.info.num_blocks // self._blocks_each)

    def prefills(self, count: int, chunk: int) -> Iterator[StepPlan]:
        """Adds `count` sequences, then yields their prompts in chunks of at most `chunk` tokens."""
        joined: JoinedSequences | None = self._join(count)
        for slots, num_tokens in self._pieces(count, chunk):
            yield self._plan(slots, num_tokens, joined)
            joined = None

    def decode(self, count: int) -> StepPlan:
        """Returns a plan of one token for each of the first `count` sequences."""
        return self._plan(np.arange(count, dtype=np.int32), 1, None)

    def verify(self, num_drafts: int, num_known: IntArray) -> StepPlan:
        """Returns a plan that also verifies random drafts, for one sequence per length.

        Args:
            num_known: tokens of each sequence before the drafts.
        """
        plan = self.decode(num_known.size)
        if not num_drafts:
            return plan
        each = np.full(num_known.size, num_drafts, dtype=np.int32)
        rng = np.random.default_rng(self._step_id)
        token_ids = rng.integers(0, self.info.vocab_size, int(each.sum()), dtype=np.int32)
        drafts = PlannedDrafts(
            slots=plan.slots, num_tokens=num_known.copy(), num_drafts=each, token_ids=token_ids
        )
        return replace(plan, max_drafts=each, drafts=drafts)

    @property
    def _blocks_each(self) -> int:
        return -(-(self.prompt_len + self.room + 1) // self.info.block_size)

    def _pieces(self, count: int, chunk: int) -> Iterator[tuple[IntArray, int]]:
        """Returns slots with their number of tokens: some whole prompts, or a part of one."""
        together = max(1, chunk // self.prompt_len)
        for first in range(0, count, together):
            slots = np.arange(first, min(first + together, count), dtype=np.int32)
            for start in range(0, self.prompt_len, chunk):
                yield slots, min(chunk, self.prompt_len - start)

    def _plan(self, slots: IntArray, num_tokens: int, joined: JoinedSequences | None) -> StepPlan:
        plan = StepPlan(
            epoch=1,
            step_id=self._step_id,
            slots=slots,
            num_tokens=np.full(slots.size, num_tokens, dtype=np.int32),
            joined=joined,
        )
        self._step_id += 1
        return plan

    def _join(self, count: int) -> JoinedSequences:
        """Returns random prompts with blocks from all over the pool."""
        rng = np.random.default_rng(0)
        num_blocks = count * self._blocks_each

        def each(value: int) -> IntArray:
            return np.full(count, value, dtype=np.int32)

        return JoinedSequences(
            slots=np.arange(count, dtype=np.int32),
            num_prompt_tokens=each(self.prompt_len),
            num_tokens=each(self.prompt_len),
            num_computed_tokens=each(0),
            token_ids=rng.integers(
                0, self.info.vocab_size, count * self.prompt_len, dtype=np.int32
            ),
            num_blocks=each(self._blocks_each),
            block_ids=rng.permutation(self.info.num_blocks)[:num_blocks].astype(np.int32),
            sampling=(SamplingParams(temperature=0.0, seed=0, ignore_eos=True),) * count,
        )
