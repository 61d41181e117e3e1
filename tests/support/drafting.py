"""Requests for drafts written by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from support.plans import ints
from taco_proto.drafts import DraftReply, DraftRequest


@dataclass(frozen=True)
class Ask:
    """A row of a request: `new` tokens behind the first `num_known`."""

    sequence: int
    num_known: int
    new: Sequence[int]
    num_drafts: int


def draft_request(*rows: Ask, left: Sequence[int] = (), request_id: int = 1) -> DraftRequest:
    return DraftRequest(
        request_id=request_id,
        sequences=np.array([row.sequence for row in rows], dtype=np.int64),
        num_known=ints([row.num_known for row in rows]),
        num_tokens=ints([len(row.new) for row in rows]),
        token_ids=ints([token_id for row in rows for token_id in row.new]),
        num_drafts=ints([row.num_drafts for row in rows]),
        left=np.array(left, dtype=np.int64),
    )


def drafts_of(reply: DraftReply) -> dict[int, list[int]]:
    """The drafts of each sequence that is not left out."""
    ends = np.cumsum(reply.num_drafts).tolist()
    rows = zip(reply.sequences.tolist(), reply.num_drafts.tolist(), ends, strict=True)
    assert reply.token_ids.size == reply.num_drafts.sum()
    return {number: reply.token_ids[end - count : end].tolist() for number, count, end in rows}
