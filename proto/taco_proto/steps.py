"""The messages between scheduler and worker: the worker's description, step plans and outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from taco_proto.licenses import NEEDS_NO_LICENSE, WorkerLicense
from taco_proto.logprobs import LogprobColumns
from taco_proto.sampling_params import SamplingParams

IntArray = npt.NDArray[np.int32]

EMPTY = np.zeros(0, dtype=np.int32)
EMPTY.setflags(write=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """The description that a worker sends when it attaches.

    Attributes:
        max_num_batched_tokens: maximum tokens of a step, for which it reserves memory.
        max_draft_tokens: maximum draft tokens of a sequence that it verifies in one step; 0: it
            does not speculate.
        drafts_itself: it drafts by itself (lookahead, heads), without drafts in the plan.
        num_host_blocks: KV blocks of the host tier; 0: no host tier.
        num_disk_blocks: maximum KV blocks of the disk tier; 0: no disk tier.
        license: whether it may run new requests now.
        max_forced_tokens: maximum draft tokens of a sequence with a grammar in one step, where the
            grammar forces them; it drafts them by itself. 0: it drafts no forced tokens.
        needs_history: it reads all tokens of every sequence, including those in cached blocks.
        logits_processors: names of the processors that it has loaded.
        adapters: names of the LoRA adapters that it has loaded.
        is_recurrent: a sequence has recurrent states in addition to its KV, and no KV block holds
            them. So a sequence begins at position 0 or continues from a state snapshot.
        num_state_snapshots: state snapshots that it stores; 0: a recurrent worker has no prefix
            cache.
    """

    name: str
    model: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_logprobs: int
    max_draft_tokens: int = 0
    drafts_itself: bool = False
    num_host_blocks: int = 0
    num_disk_blocks: int = 0
    license: WorkerLicense = NEEDS_NO_LICENSE
    needs_history: bool = False
    max_forced_tokens: int = 0
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    logits_processors: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    is_recurrent: bool = False
    num_state_snapshots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSequences:
    """Sequences that enter the worker's persistent batch; row i of every column is one of them.

    `num_tokens` counts the prompt and the tokens generated before a preemption;
    `num_computed_tokens` counts tokens whose KV is in the blocks already. `token_ids` omits the
    first `num_omitted_tokens` of each sequence (empty: omits none). Only computed tokens are
    omitted, since the model does not read them again, and only if neither the sampling parameters
    nor the worker read a sequence's history.
    `sampling` has a separate seed for every sequence. A lookahead cache uses tokens only for
    sequences with the same entry of `cache_salts`; empty: no sequence has a salt. An entry of
    `grammar_hashes` names the grammar of a sequence, which the worker has reported as ready before
    a step samples the sequence; an empty entry: free text; no entries: all texts are free. An entry
    of `adapters` names the LoRA adapter of a sequence; an empty entry: the base model; no entries:
    all sequences use it. An entry of `state_snapshots` is the snapshot that holds the recurrent
    state after `num_computed_tokens` tokens; -1: the sequence begins at position 0; no entries: all
    sequences of a recurrent worker begin there.
    """

    slots: IntArray
    num_prompt_tokens: IntArray
    num_tokens: IntArray
    num_computed_tokens: IntArray
    token_ids: IntArray  # flat, sum(num_tokens - num_omitted_tokens)
    num_blocks: IntArray
    block_ids: IntArray  # flat, sum(num_blocks)
    sampling: tuple[SamplingParams, ...]
    cache_salts: tuple[str, ...] = ()
    grammar_hashes: tuple[bytes, ...] = ()
    adapters: tuple[str, ...] = ()
    num_omitted_tokens: IntArray = field(default_factory=lambda: EMPTY)
    state_snapshots: IntArray = field(default_factory=lambda: EMPTY)

    @property
    def first_tokens(self) -> IntArray:
        """Position of each sequence's first token in `token_ids`."""
        omitted = self.num_omitted_tokens
        return omitted if omitted.size else np.zeros_like(self.num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDrafts:
    """Draft tokens that a draft worker proposed; row i of every column is one sequence.

    `num_tokens` is the length of the sequence before the first draft: if the worker has another
    length by then, the drafts are stale and it ignores them.
    """

    slots: IntArray
    num_tokens: IntArray
    num_drafts: IntArray
    token_ids: IntArray  # flat, sum(num_drafts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopies:
    """Block copies at the start of a step: all offloads first, then all loads, then its rows run.

    So a device block may be offloaded, loaded into and written in one step. Host blocks are
    numbered from 0; each holds one device block's KV of all layers.
    """

    offload_sources: IntArray = field(default_factory=lambda: EMPTY)  # device blocks
    offload_targets: IntArray = field(default_factory=lambda: EMPTY)  # host blocks
    load_sources: IntArray = field(default_factory=lambda: EMPTY)  # host blocks
    load_targets: IntArray = field(default_factory=lambda: EMPTY)  # device blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward step as the difference from the step before.

    Order of effect: `copies` are made, `left_slots` leave, `joined` enter, `appended_blocks` are
    added to the block tables, then the rows `slots` run `num_tokens` tokens each, from where each
    of them stands. A row whose tokens reach the end of what is known of its sequence is sampled;
    the worker keeps the sampled token as the sequence's next one, so that the next plan need not
    name it.

    `max_drafts` says of each row how many draft tokens it may verify beside its own, within its
    blocks; empty: none. How many tokens such a row gives only its output tells, so that where a row
    stands is the worker's knowledge: a later plan may run it while its length is not known here.

    While the step runs, a recurrent worker stores the state of the sequence in `saved_slots[i]`,
    after its first `saved_positions[i]` tokens, in the snapshot `saved_snapshots[i]`. The row of
    that slot computes the token before this position. A slot has at most one entry, and a snapshot
    that a joining sequence of the same plan continues from has none.
    """

    epoch: int
    step_id: int
    slots: IntArray
    num_tokens: IntArray
    left_slots: IntArray = field(default_factory=lambda: EMPTY)
    joined: JoinedSequences | None = None
    appended_slots: IntArray = field(default_factory=lambda: EMPTY)  # one entry a block
    appended_blocks: IntArray = field(default_factory=lambda: EMPTY)
    max_drafts: IntArray = field(default_factory=lambda: EMPTY)  # one entry a row
    drafts: PlannedDrafts | None = None
    copies: BlockCopies | None = None
    saved_slots: IntArray = field(default_factory=lambda: EMPTY)
    saved_positions: IntArray = field(default_factory=lambda: EMPTY)
    saved_snapshots: IntArray = field(default_factory=lambda: EMPTY)
    is_announced: bool = (
        False  # a poison-request suspect is in it: the worker announces the step before it begins
    )


class RowErrorCode(IntEnum):
    """Why one sequence of a step failed; the values are those of the protobuf enum."""

    UNKNOWN = 0  # a code of a later version
    INVALID_LOGITS = 1  # no token can be chosen: a logit is NaN or infinite, or all are -inf
    NO_ALLOWED_TOKEN = 2  # the grammar and other parameters leave no token to continue the text
    GRAMMAR_LIMIT = 3  # the parser of the grammar exceeded a limit
    PROCESSOR_FAILED = 4  # a logits processor raised an exception or returned no valid logits
    INVALID_ARGUMENTS = 5  # a logits processor rejects the request's arguments


@dataclass(frozen=True, slots=True)
class RowError:
    """One sequence failed in a step that succeeded for the others.

    Attributes:
        slot: a slot of the step's plan, sampled or not.
        message: for the client.
    """

    slot: int
    code: RowErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The output of one step, read against the plan of the same `epoch` and `step_id`.

    `slots` are the sampled rows. `num_tokens` counts the tokens of each row (empty: one each): the
    accepted drafts and one more token. `num_drafts` counts the drafts that each row verified
    (empty: none). `logprobs` has one row a token (None: not requested). Prompt log probabilities
    have one row for each prompt position that this step computed, except a prompt's first position.
    `error` is set if the step failed: its other fields are ignored, and the worker rejects later
    plans of the same epoch. `row_errors` names sequences that failed while the step succeeded:
    their rows are ignored.
    """

    epoch: int
    step_id: int
    slots: IntArray = field(default_factory=lambda: EMPTY)
    token_ids: IntArray = field(default_factory=lambda: EMPTY)  # flat, sum(num_tokens)
    num_tokens: IntArray = field(default_factory=lambda: EMPTY)
    num_drafts: IntArray = field(default_factory=lambda: EMPTY)
    logprobs: LogprobColumns | None = None
    num_invalid_drafts: int = 0  # drafters whose drafts were invalid and ignored
    prompt_logprob_slots: IntArray = field(default_factory=lambda: EMPTY)
    prompt_logprob_positions: IntArray = field(default_factory=lambda: EMPTY)
    prompt_logprobs: LogprobColumns | None = None
    row_errors: tuple[RowError, ...] = ()
    error: str = ""
