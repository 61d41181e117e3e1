"""What passes between scheduler and draft workers survives the round trip through its message."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_proto import convert_drafts
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest

counts = st.lists(st.integers(0, 4), max_size=4)
numbers = st.integers(0, 2**62)


def _columns(draw: st.DrawFn, num_tokens: list[int]) -> dict[str, np.ndarray]:
    token_ids = st.integers(0, 2**31 - 1)
    total, rows = sum(num_tokens), len(num_tokens)
    return {
        "sequences": np.array(
            draw(st.lists(numbers, min_size=rows, max_size=rows)), dtype=np.int64
        ),
        "token_ids": np.array(
            draw(st.lists(token_ids, min_size=total, max_size=total)), dtype=np.int32
        ),
    }


@st.composite
def requests(draw: st.DrawFn) -> DraftRequest:
    num_tokens = draw(counts)
    return DraftRequest(
        request_id=draw(numbers),
        num_known=np.array([draw(st.integers(0, 2**20)) for _ in num_tokens], dtype=np.int32),
        num_tokens=np.array(num_tokens, dtype=np.int32),
        num_drafts=np.array([draw(st.integers(0, 16)) for _ in num_tokens], dtype=np.int32),
        left=np.array(draw(st.lists(numbers, max_size=3)), dtype=np.int64),
        **_columns(draw, num_tokens),
    )


@st.composite
def replies(draw: st.DrawFn) -> DraftReply:
    num_drafts = draw(counts)
    return DraftReply(
        request_id=draw(numbers),
        num_drafts=np.array(num_drafts, dtype=np.int32),
        **_columns(draw, num_drafts),
    )


def assert_equal(left: DraftRequest | DraftReply, right: DraftRequest | DraftReply) -> None:
    assert type(left) is type(right)
    for field in fields(left):
        one, other = getattr(left, field.name), getattr(right, field.name)
        np.testing.assert_array_equal(one, other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


@given(requests())
def test_requests(request: DraftRequest) -> None:
    sent = convert_drafts.draft_request_to_pb(request).SerializeToString()
    assert_equal(convert_drafts.draft_request_from_pb(pb.DraftRequest.FromString(sent)), request)


@given(replies())
def test_replies(reply: DraftReply) -> None:
    sent = convert_drafts.draft_reply_to_pb(reply).SerializeToString()
    assert_equal(convert_drafts.draft_reply_from_pb(pb.DraftReply.FromString(sent)), reply)


def test_info_says_the_protocol_too() -> None:
    info = DrafterInfo(name="d", model="m", vocab_size=9, max_model_len=7)
    message = convert_drafts.drafter_info_to_pb(info)
    assert message.protocol_version == PROTOCOL_VERSION
    assert convert_drafts.drafter_info_from_pb(message) == info


def test_numbers_that_are_too_large_come_out_negative() -> None:
    reply = convert_drafts.draft_reply_from_pb(pb.DraftReply(token_ids=[2**31], sequences=[2**63]))
    assert reply.token_ids[0] < 0
    assert reply.sequences[0] < 0


def test_tokens_that_are_no_whole_numbers_are_an_error() -> None:
    with pytest.raises(ValueError, match="buffer size"):
        convert_drafts.draft_request_from_pb(pb.DraftRequest(token_ids=b"12345"))
