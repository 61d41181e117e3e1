"""The limit on the number of fields of a gRPC request."""

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from taco_gateway.grpc_api.field_limit import MAX_FIELDS, has_more_fields
from taco_proto import inference_pb2 as pb


def num_fields(request: Message) -> int:
    """The number of fields, counted in the parsed message."""
    count = 0
    for field, value in request.ListFields():
        values = list(value) if field.is_repeated else [value]
        if field.message_type is None:
            count += 1 if field.is_repeated and field.type != field.TYPE_STRING else len(values)
        else:
            count += sum(1 + num_fields(item) for item in values)
    return count


REQUESTS = st.builds(
    pb.ChatRequest,
    model=st.text(max_size=3),
    priority=st.integers(-(2**31), 2**31 - 1),
    messages=st.lists(
        st.builds(pb.ChatMessage, role=st.text(max_size=2), content=st.text(max_size=300)),
        max_size=5,
    ),
    sampling=st.builds(
        pb.TextSampling,
        temperature=st.floats(0, 2, width=32),
        seed=st.integers(0, 2**63 - 1),
        stop=st.lists(st.text(max_size=2), max_size=3),
        stop_token_ids=st.lists(st.integers(0, 2**31), max_size=3),
    ),
)


@given(REQUESTS)
def test_counts_set_fields(request: pb.ChatRequest) -> None:
    data = request.SerializeToString()
    count = num_fields(request)
    assert not has_more_fields(data, pb.ChatRequest, count)
    assert not count or has_more_fields(data, pb.ChatRequest, count - 1)


@given(st.binary(max_size=200))
def test_any_bytes_end_the_count(data: bytes) -> None:
    has_more_fields(data, pb.ChatRequest, 50)


@pytest.mark.parametrize("num_messages", [MAX_FIELDS, 1_000_000])
def test_empty_messages(num_messages: int) -> None:
    data = b"\x12\x00" * num_messages
    assert has_more_fields(data, pb.ChatRequest, MAX_FIELDS) == (num_messages > MAX_FIELDS)


def test_packed_ids_are_one_field() -> None:
    request = pb.CompleteRequest(token_ids=pb.TokenIds(ids=range(100_000)))
    data = request.SerializeToString()
    assert not has_more_fields(data, pb.CompleteRequest, 2)
