"""The messages between the scheduler and a draft worker."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from taco_proto.steps import EMPTY, IntArray

LongArray = npt.NDArray[np.int64]

NO_SEQUENCES = np.zeros(0, dtype=np.int64)
NO_SEQUENCES.setflags(write=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterInfo:
    """The description that a draft worker sends when it attaches."""

    name: str
    model: str
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """Sequences to continue; row i of every column is one of them.

    A sequence has a number that is never reused. Its first `num_known` tokens were sent before; the
    new tokens replace everything that was drafted or sent after those.

    Attributes:
        left: sequences that need no more drafts.
        num_tokens: new tokens of each.
        token_ids: flat, sum(num_tokens).
        num_drafts: draft tokens wanted of each sequence.
    """

    request_id: int
    sequences: LongArray
    num_known: IntArray
    num_tokens: IntArray
    token_ids: IntArray
    num_drafts: IntArray
    left: LongArray = field(default_factory=lambda: NO_SEQUENCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReply:
    """The drafted tokens. Sequences that could not be drafted for have no row."""

    request_id: int
    sequences: LongArray = field(default_factory=lambda: NO_SEQUENCES)
    num_drafts: IntArray = field(default_factory=lambda: EMPTY)
    token_ids: IntArray = field(default_factory=lambda: EMPTY)  # flat, sum(num_drafts)
