"""A worker without a model: it keeps the state a real one keeps and checks every plan against it.

Its next token is a function of all tokens before it, the seed and nothing else, so a sequence's
output must be the same under every schedule. A shadow of the KV memory holds the (token, position)
that was written to each place; every read must find the sequence's own tokens there.
"""

import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from support.fake_tiers import FakeTiers
from taco_proto.grammars import GrammarCommand, GrammarReady
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.logprobs import LogprobColumns
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import (
    EMPTY,
    IntArray,
    JoinedSequences,
    RowError,
    RowErrorCode,
    StepOutput,
    StepPlan,
    WorkerInfo,
)

EOS = 0


def worker_info(**changes: object) -> WorkerInfo:
    values: dict[str, object] = {
        "name": "fake",
        "model": "fake-model",
        "max_model_len": 128,
        "vocab_size": 64,
        "eos_token_ids": (EOS,),
        "block_size": 4,
        "num_blocks": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 8192,
        "max_logprobs": 20,
        "drafts_itself": True,
    }
    return WorkerInfo(**{**values, **changes})  # type: ignore[arg-type]


def next_token(tokens: Sequence[int], seed: int, vocab_size: int) -> int:
    """What the fake model says after `tokens`."""
    state = zlib.crc32(array("i", tokens).tobytes(), seed & 0xFFFFFFFF)
    return ((state * 0x9E3779B97F4A7C15) >> 20) % vocab_size


def token_logprob(tokens: Sequence[int], token: int) -> float:
    """The fake model's log probability of `token` after `tokens`; exact in 32-bit floats."""
    return -float(zlib.crc32(array("i", [*tokens, token]).tobytes()) % 4096) / 256


def candidates(tokens: Sequence[int], count: int, vocab_size: int) -> list[tuple[float, int]]:
    """The fake model's most likely tokens after `tokens`, and their log probabilities."""
    options = [(token_logprob(tokens, token), token) for token in range(vocab_size)]
    return sorted(options, key=lambda option: (-option[0], option[1]))[:count]


def generate(
    prompt: Sequence[int], sampling: SamplingParams, info: WorkerInfo, seed: int
) -> list[int]:
    """The tokens that any correct schedule gives."""
    tokens = list(prompt)
    stops = set(sampling.stop_token_ids or ())
    if not sampling.ignore_eos:
        stops.update(info.eos_token_ids)
    assert sampling.max_tokens is not None
    limit = min(
        len(prompt) + sampling.max_tokens,
        info.max_model_len,
        info.num_blocks * info.block_size + 1,
    )
    while len(tokens) < limit:
        tokens.append(next_token(tokens, seed, info.vocab_size))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class IllegalPlanError(AssertionError):
    """The scheduler sent a plan that a worker cannot run."""


ROW_ERROR = "this row fails"


@dataclass(slots=True)
class Row:
    tokens: list[int]
    num_prompt_tokens: int
    num_computed: int
    blocks: list[int]
    sampling: SamplingParams
    has_grammar: bool = False


@dataclass
class FakeWorker:
    """A `StepExecutor`.

    Args:
        fails: tells which steps fail, by their step id.
        fails_row: tells of each row that a step has run whether it fails, alone.
        is_broken: no step will ever succeed again.
    """

    info: WorkerInfo = field(default_factory=worker_info)
    max_num_batched_tokens: int | None = None
    fails: Callable[[StepPlan], bool] = lambda plan: False
    fails_row: Callable[[Row], bool] = lambda row: False
    is_broken: bool = False

    def __post_init__(self) -> None:
        kv = np.full((self.info.num_blocks, 2, self.info.block_size), -1, dtype=np.int64)
        self.kv, self.kv_tokens, self.kv_positions = kv, kv[:, 0], kv[:, 1]
        self.tiers = FakeTiers(self.info)
        self.rows: dict[int, Row] = {}
        self.epoch = -1
        self.failed_epoch = -1
        self.num_computed_tokens = 0
        self.num_sampled_tokens = 0
        self.num_forced_tokens = 0

    def submit(self, plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None:
        deliver(self.execute(plan))

    def set_grammars(self, command: GrammarCommand, report: Callable[[GrammarReady], None]) -> None:
        for grammar in command.compiled:
            report(GrammarReady(grammar.hash))

    def store(self, command: StoreCommand, report: Callable[[StoreReport], None]) -> None:
        self.tiers.store(command, report)

    def tune(self) -> bool:
        return False

    def execute(self, plan: StepPlan) -> StepOutput:
        if plan.epoch == self.failed_epoch:
            return StepOutput(epoch=plan.epoch, step_id=plan.step_id, error="refused")
        if plan.epoch != self.epoch:
            require(plan.epoch > self.epoch, "the epoch goes back")
            self.rows.clear()
            self.epoch = plan.epoch
        if plan.copies is not None:
            self.tiers.copy(self.kv, plan.copies)
        self._update(plan)
        self._check_limits(plan)
        if self.fails(plan):
            if plan.copies is not None:
                self.tiers.spoil(self.kv, plan.copies)
            self._scribble(plan)
            self.failed_epoch = plan.epoch
            return StepOutput(epoch=plan.epoch, step_id=plan.step_id, error="injected failure")
        return self._run(plan)

    # ------------------------------------------------------------------- state

    def _update(self, plan: StepPlan) -> None:
        for slot in plan.left_slots.tolist():
            require(slot in self.rows, f"slot {slot} leaves but is empty")
            del self.rows[slot]
        if plan.joined is not None:
            self._join(plan.joined)
        for slot, block in zip(
            plan.appended_slots.tolist(), plan.appended_blocks.tolist(), strict=True
        ):
            require(slot in self.rows, f"a block for the empty slot {slot}")
            self.rows[slot].blocks.append(block)
        for row in self.rows.values():
            require(len(set(row.blocks)) == len(row.blocks), "a block twice in a table")
            require(all(0 <= b < self.info.num_blocks for b in row.blocks), "a block out of range")

    def _join(self, joined: JoinedSequences) -> None:
        first_tokens = joined.first_tokens
        num_sent = joined.num_tokens - first_tokens
        token_ends = np.cumsum(num_sent)
        require(token_ends[-1] == len(joined.token_ids), "tokens are missing or too many")
        block_ends = np.cumsum(joined.num_blocks)
        for i, slot in enumerate(joined.slots.tolist()):
            require(0 <= slot < self.info.max_num_seqs, f"slot {slot} is out of range")
            require(slot not in self.rows, f"slot {slot} is taken")
            sent = joined.token_ids[token_ends[i] - num_sent[i] : token_ends[i]].tolist()
            blocks = joined.block_ids[block_ends[i] - joined.num_blocks[i] : block_ends[i]]
            num_computed, num_omitted = int(joined.num_computed_tokens[i]), int(first_tokens[i])
            require(num_computed < joined.num_tokens[i], "nothing is left to compute")
            require(num_omitted <= num_computed, "a token that is to be computed was not sent")
            if self.info.needs_history or joined.sampling[i].reads_history:
                require(num_omitted == 0, "tokens that the worker reads were not sent")
            self.rows[slot] = Row(
                self._known_tokens(blocks, num_omitted) + sent,
                int(joined.num_prompt_tokens[i]),
                num_computed,
                blocks.tolist(),
                joined.sampling[i],
                bool(joined.grammar_hashes and joined.grammar_hashes[i]),
            )

    def _known_tokens(self, blocks: IntArray, count: int) -> list[int]:
        """The first tokens of a sequence as the KV memory has them."""
        return self.kv_tokens[blocks].reshape(-1)[:count].tolist()

    def _check_limits(self, plan: StepPlan) -> None:
        slots = plan.slots.tolist()
        require(len(set(slots)) == len(slots), "rows are doubled")
        require(slots or plan.copies is not None, "there is nothing to do")
        require(len(slots) <= self.info.max_num_seqs, "too many rows")
        num_tokens = int(plan.num_tokens.sum() + plan.max_drafts.sum())
        require(num_tokens <= self.info.max_num_batched_tokens, "too many tokens for the worker")
        if self.max_num_batched_tokens is not None:
            require(num_tokens <= self.max_num_batched_tokens, "too many tokens")
        written: set[int] = set()
        for slot, count, max_drafts in _rows_of(plan):
            require(slot in self.rows, f"slot {slot} is empty")
            row = self.rows[slot]
            end = row.num_computed + count
            require(count >= 1, "a row without tokens")
            require(end <= len(row.tokens), "a row runs past its tokens")
            require(
                len(row.tokens) <= self.info.max_model_len - 1, "a row is past the model's length"
            )
            most = self._max_drafts_of(row)
            require(0 <= max_drafts <= most, "drafts that were not requested")
            require(not max_drafts or end == len(row.tokens), "drafts in the middle of a prompt")
            require(
                end + max_drafts < self.info.max_model_len + (not max_drafts), "too many drafts"
            )
            num_needed = -(-(end + max_drafts) // self.info.block_size)
            require(num_needed <= len(row.blocks), "a block table is too short")
            # Waste: at most what one more block holds, and never more than the known tokens need,
            # and the drafts of this step and of the one that is planned while it runs.
            num_useful = len(row.tokens) + 2 * most
            num_useful = -(-num_useful // self.info.block_size)
            require(len(row.blocks) <= num_useful, "a block table is too long")
            own = row.blocks[row.num_computed // self.info.block_size : num_needed]
            require(not written.intersection(own), "two rows write to one block")
            written.update(own)

    def _max_drafts_of(self, row: Row) -> int:
        forced = self.info.max_forced_tokens if row.has_grammar else 0
        return max(self.info.max_draft_tokens, forced)

    # --------------------------------------------------------------------- run

    def _run(self, plan: StepPlan) -> StepOutput:
        slots = plan.slots.tolist()
        # All reads come before all writes: what a row relies on was there before the step.
        for slot in slots:
            self._check_reads(self.rows[slot])
        logprobs, prompt_logprobs = LogprobColumns(), LogprobColumns()
        sampled: list[tuple[int, int, int]] = []  # slot, tokens, drafts
        token_ids: list[int] = []
        prompt_rows: list[tuple[int, int]] = []
        planned = self._planned(plan)
        for slot, count, max_drafts in _rows_of(plan):
            row = self.rows[slot]
            start, end = row.num_computed, row.num_computed + count
            self._write(row, start, row.tokens[start:end])
            row.num_computed = end
            self.num_computed_tokens += count
            if row.sampling.prompt_logprobs is not None:
                for position in range(start + 1, min(end + 1, row.num_prompt_tokens)):
                    before, token = row.tokens[:position], row.tokens[position]
                    prompt_logprobs.append_row([token], [token_logprob(before, token)], [1])
                    prompt_rows.append((slot, position))
            if end == len(row.tokens):
                num_drafts, num_accepted = self._luck(row, max_drafts)
                if slot in planned:
                    num_drafts, num_accepted = self._try(row, planned[slot], max_drafts)
                # What is drafted and rejected leaves its KV behind.
                self._write(row, end, [-9] * num_drafts)
                for i in range(num_accepted + 1):
                    token_ids.append(self._sample(row, logprobs))
                    if i < num_accepted:
                        self._write(row, row.num_computed, row.tokens[-1:])
                        row.num_computed += 1
                sampled.append((slot, num_accepted + 1, num_drafts))
        self.num_sampled_tokens += len(sampled)
        return StepOutput(
            epoch=plan.epoch,
            step_id=plan.step_id,
            slots=_column(sampled, 0),
            token_ids=np.array(token_ids, dtype=np.int32),
            num_tokens=_column(sampled, 1) if plan.max_drafts.size else EMPTY,
            num_drafts=_column(sampled, 2) if plan.max_drafts.size else EMPTY,
            logprobs=logprobs if logprobs.token_ids.size else None,
            prompt_logprob_slots=_column(prompt_rows, 0),
            prompt_logprob_positions=_column(prompt_rows, 1),
            prompt_logprobs=prompt_logprobs if prompt_rows else None,
            row_errors=tuple(
                RowError(slot, RowErrorCode.INVALID_LOGITS, ROW_ERROR)
                for slot in slots
                if self.fails_row(self.rows[slot])
            ),
        )

    def _luck(self, row: Row, max_drafts: int) -> tuple[int, int]:
        """How many of the worker's own drafts a row verifies, and how many of them are right: all
        of those that a grammar forces."""
        state = zlib.crc32(array("i", row.tokens[-3:]).tobytes())
        if row.has_grammar and state % 3:
            num_forced = state % (min(max_drafts, self.info.max_forced_tokens) + 1)
            self.num_forced_tokens += num_forced
            return num_forced, num_forced
        if not self.info.drafts_itself:
            return 0, 0
        num_drafts = state % (max_drafts + 1)
        return num_drafts, (state >> 8) % (num_drafts + 1)

    def _planned(self, plan: StepPlan) -> dict[int, list[int]]:
        """A draft worker's drafts by slot. Whom it drafts for is never run ahead."""
        drafts = plan.drafts
        if drafts is None:
            return {}
        chains: dict[int, list[int]] = {}
        ends = np.cumsum(drafts.num_drafts).tolist()
        for i, slot in enumerate(drafts.slots.tolist()):
            require(len(self.rows[slot].tokens) == drafts.num_tokens[i], "drafts are stale")
            chains[slot] = drafts.token_ids[ends[i] - drafts.num_drafts[i] : ends[i]].tolist()
        return chains

    def _try(self, row: Row, chain: list[int], max_drafts: int) -> tuple[int, int]:
        """How many drafts of a chain there are, and how many of them are right."""
        require(0 < len(chain) <= max_drafts, "more drafts than a row may verify")
        tokens = list(row.tokens)
        seed = row.sampling.seed
        assert seed is not None
        for num_accepted, draft in enumerate(chain):
            if next_token(tokens, seed, self.info.vocab_size) != draft:
                return len(chain), num_accepted
            tokens.append(draft)
        return len(chain), len(chain)

    def _sample(self, row: Row, logprobs: LogprobColumns) -> int:
        seed = row.sampling.seed
        assert seed is not None
        if row.sampling.use_beam_search:
            return self._sample_beam(row, logprobs)
        token = next_token(row.tokens, seed, self.info.vocab_size)
        if row.sampling.logprobs is None:
            logprobs.append_row([], [], [])
        else:
            logprobs.append_row([token], [token_logprob(row.tokens, token)], [1])
        row.tokens.append(token)
        return token

    def _sample_beam(self, row: Row, logprobs: LogprobColumns) -> int:
        count = row.sampling.logprobs
        assert count is not None
        options = candidates(row.tokens, count, self.info.vocab_size)
        token = options[0][1]
        logprobs.append_row(
            [token, *(token for _, token in options)],
            [options[0][0], *(value for value, _ in options)],
            [1, *range(1, len(options) + 1)],
        )
        row.tokens.append(token)
        return token

    def _check_reads(self, row: Row) -> None:
        positions = np.arange(row.num_computed)
        blocks = np.array(row.blocks, dtype=np.int64)[positions // self.info.block_size]
        offsets = positions % self.info.block_size
        tokens = self.kv_tokens[blocks, offsets]
        require(np.array_equal(tokens, row.tokens[: row.num_computed]), "KV of other tokens")
        require(np.array_equal(self.kv_positions[blocks, offsets], positions), "KV of other places")

    def _write(self, row: Row, start: int, tokens: list[int]) -> None:
        positions = np.arange(start, start + len(tokens))
        blocks = np.array(row.blocks, dtype=np.int64)[positions // self.info.block_size]
        self.kv_tokens[blocks, positions % self.info.block_size] = tokens
        self.kv_positions[blocks, positions % self.info.block_size] = positions

    def _scribble(self, plan: StepPlan) -> None:
        """A failed step leaves garbage where it would have written."""
        for slot, count, max_drafts in _rows_of(plan):
            row = self.rows[slot]
            self._write(row, row.num_computed, [-7] * (count + max_drafts))


def require(condition: object, problem: str) -> None:
    if not condition:
        raise IllegalPlanError(problem)


def _rows_of(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(slot, tokens, drafts that it may verify) of every row."""
    max_drafts = plan.max_drafts if plan.max_drafts.size else np.zeros_like(plan.slots)
    columns = (plan.slots, plan.num_tokens, max_drafts)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _column(rows: Sequence[tuple[int, ...]], which: int) -> IntArray:
    return np.array([row[which] for row in rows], dtype=np.int32)
