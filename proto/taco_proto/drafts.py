"""What flows between the scheduler and a draft worker."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from taco_proto.steps import EMPTY, IntArray

LongArray = npt.NDArray[np.int64]

NO_SEQUENCES = np.zeros(0, dtype=np.int64)
NO_SEQUENCES.setflags(write=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterInfo:
    """What a draft worker tells the scheduler of itself when it dials in."""

    name: str
    model: str
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """Sequences to continue; row i of every column is one of them.

    A sequence is named by a number that is never used again. Its first `num_known` tokens have been
    sent before; the tokens behind them replace whatever was drafted or sent there.

    Attributes:
        left: sequences that need no drafts any more.
        num_tokens: new tokens of each.
        token_ids: flat, sum(num_tokens).
        num_drafts: draft tokens that are wanted of each.
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
    """The most likely continuations. Rows may be missing: of sequences that could not be drafted
    for."""

    request_id: int
    sequences: LongArray = field(default_factory=lambda: NO_SEQUENCES)
    num_drafts: IntArray = field(default_factory=lambda: EMPTY)
    token_ids: IntArray = field(default_factory=lambda: EMPTY)  # flat, sum(num_drafts)
