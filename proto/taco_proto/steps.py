"""What flows between the scheduler and a worker, once a step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from taco_proto.logprobs import LogprobColumns
from taco_proto.sampling_params import SamplingParams

IntArray = npt.NDArray[np.int32]

EMPTY = np.zeros(0, dtype=np.int32)
EMPTY.setflags(write=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """What a worker tells the scheduler of itself when it dials in."""

    name: str
    model: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_logprobs: int
    default_sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSequences:
    """Sequences that enter the worker's persistent batch; row i of every column is one of them.

    `num_tokens` counts the prompt and what was generated before (a sequence that was preempted
    brings its tokens along), `num_computed_tokens` those whose KV is in the blocks already.
    `sampling` has its seed set, an own one for every sequence.
    """

    slots: IntArray
    num_prompt_tokens: IntArray
    num_tokens: IntArray
    num_computed_tokens: IntArray
    token_ids: IntArray  # flat, sum(num_tokens)
    num_blocks: IntArray
    block_ids: IntArray  # flat, sum(num_blocks)
    sampling: tuple[SamplingParams, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward step as the difference from the step before.

    Order of effect: `left_slots` leave, `joined` enter, `appended_blocks` are added to the block
    tables, then the rows `slots` run `num_tokens` tokens each, from where each of them stands. A
    row whose tokens reach the end of what is known of its sequence is sampled; the worker keeps the
    sampled token as the sequence's next one, so that the next plan need not name it.
    """

    epoch: int
    step_id: int
    slots: IntArray
    num_tokens: IntArray
    left_slots: IntArray = field(default_factory=lambda: EMPTY)
    joined: JoinedSequences | None = None
    appended_slots: IntArray = field(default_factory=lambda: EMPTY)  # one entry a block
    appended_blocks: IntArray = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What one step gave. It is read against the plan of the same `epoch` and `step_id`.

    `slots` are the rows that were sampled, `logprobs` has a row for each of them (None: nobody
    asked). Prompt log probabilities have one row a prompt position that this step computed, the
    first position of a prompt excepted. `error` is set when the step failed: nothing of it counts,
    and the worker refuses later plans of the same epoch.
    """

    epoch: int
    step_id: int
    slots: IntArray = field(default_factory=lambda: EMPTY)
    token_ids: IntArray = field(default_factory=lambda: EMPTY)
    logprobs: LogprobColumns | None = None
    prompt_logprob_slots: IntArray = field(default_factory=lambda: EMPTY)
    prompt_logprob_positions: IntArray = field(default_factory=lambda: EMPTY)
    prompt_logprobs: LogprobColumns | None = None
    error: str = ""
