"""Converters of the messages between the scheduler and draft workers.

Numbers that are too large come out negative; the receiver rejects them.
"""

from taco_proto import scheduler_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest
from taco_proto.log_text import MAX_MODEL_CHARS, MAX_NAME_CHARS, one_line
from taco_proto.message_codec import MessageCodec

_INFO = MessageCodec(
    DrafterInfo,
    pb.DrafterHello,
    decode={
        "name": lambda message: one_line(message.name, MAX_NAME_CHARS),
        "model": lambda message: one_line(message.model, MAX_MODEL_CHARS),
    },
)
_REQUEST = MessageCodec(DraftRequest, pb.DraftRequest)
_REPLY = MessageCodec(DraftReply, pb.DraftReply)

drafter_info_from_pb = _INFO.from_pb
draft_request_to_pb = _REQUEST.to_pb
draft_request_from_pb = _REQUEST.from_pb
draft_reply_to_pb = _REPLY.to_pb
draft_reply_from_pb = _REPLY.from_pb


def drafter_info_to_pb(info: DrafterInfo) -> pb.DrafterHello:
    return _INFO.to_pb(info, protocol_version=PROTOCOL_VERSION)
