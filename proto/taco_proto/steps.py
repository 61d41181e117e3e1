"""What flows between the scheduler and a worker, once a step."""

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
    """What a worker tells the scheduler of itself when it dials in.

    Attributes:
        max_num_batched_tokens: maximum number of tokens in a step, for which it keeps memory.
        max_draft_tokens: the most draft tokens of a sequence that it verifies in one step; 0: it
            does not speculate.
        drafts_itself: drafts may come of a step although its plan brings none.
        num_host_blocks: blocks of KV that its memory has room for, beside the device; 0: none.
        num_disk_blocks: the most blocks of KV that it may keep as files; 0: none.
        license: whether it may take new requests at that moment.
        needs_history: it reads all tokens of every sequence, also those in cached blocks.
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
    default_sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSequences:
    """Sequences that enter the worker's persistent batch; row i of every column is one of them.

    `num_tokens` counts the prompt and what was generated before (a sequence that was preempted
    brings its tokens along), `num_computed_tokens` those whose KV is in the blocks already.
    `token_ids` leaves out the first `num_omitted_tokens` of each sequence (empty: none of any), at
    most those that are computed: the model does not read them again. It omits none where the
    sampling parameters or the worker read a sequence's history.
    `sampling` has its seed set, an own one for every sequence. What is learned from the tokens of
    a sequence is used for those of the same `cache_salts` entry alone; empty: none has a salt.
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
    num_omitted_tokens: IntArray = field(default_factory=lambda: EMPTY)

    @property
    def first_tokens(self) -> IntArray:
        """Position of each sequence's first token in `token_ids`."""
        omitted = self.num_omitted_tokens
        return omitted if omitted.size else np.zeros_like(self.num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDrafts:
    """Draft tokens that a draft worker proposed; row i of every column is one sequence.

    `num_tokens` are the tokens of the sequence that the first draft follows: if the worker knows
    more or fewer by then, the drafts are stale and it leaves them out.
    """

    slots: IntArray
    num_tokens: IntArray
    num_drafts: IntArray
    token_ids: IntArray  # flat, sum(num_drafts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopies:
    """Block copies that a step begins with: all offloads first, then all loads, then its rows run.

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
    is_announced: bool = False  # the worker may not survive it, and says first that it begins


class RowErrorCode(IntEnum):
    """Why one sequence of a step failed; the values are those of the protobuf enum."""

    UNKNOWN = 0  # a code of a later version
    INVALID_LOGITS = 1  # no token can be chosen: a logit is NaN or infinite, or all are -inf


@dataclass(frozen=True, slots=True)
class RowError:
    """One sequence failed in a step that succeeded for the others.

    Attributes:
        slot: a slot that the step's plan runs, whether it samples or not.
        message: what the client is told.
    """

    slot: int
    code: RowErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What one step gave. It is read against the plan of the same `epoch` and `step_id`.

    `slots` are the rows that were sampled, `num_tokens` the tokens that each of them got (empty:
    one each), of which all but the last were drafts that were accepted, and `num_drafts` the drafts
    that each of them verified (empty: none). `logprobs` has a row a token (None: nobody asked).
    Prompt log probabilities have one row a prompt position that this step computed, the first
    position of a prompt excepted. `error` is set when the step failed: nothing of it counts, and
    the worker refuses later plans of the same epoch. `row_errors` name sequences that failed while
    the step succeeded: they have rows like the others, of which nothing counts.
    """

    epoch: int
    step_id: int
    slots: IntArray = field(default_factory=lambda: EMPTY)
    token_ids: IntArray = field(default_factory=lambda: EMPTY)  # flat, sum(num_tokens)
    num_tokens: IntArray = field(default_factory=lambda: EMPTY)
    num_drafts: IntArray = field(default_factory=lambda: EMPTY)
    logprobs: LogprobColumns | None = None
    num_invalid_drafts: int = 0  # drafters whose drafts could not be and were left out
    prompt_logprob_slots: IntArray = field(default_factory=lambda: EMPTY)
    prompt_logprob_positions: IntArray = field(default_factory=lambda: EMPTY)
    prompt_logprobs: LogprobColumns | None = None
    row_errors: tuple[RowError, ...] = ()
    error: str = ""
