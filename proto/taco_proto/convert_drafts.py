"""Messages between the scheduler and draft workers, to dataclasses and back."""

import numpy as np

from taco_proto import scheduler_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest
from taco_proto.log_text import MAX_MODEL_CHARS, MAX_NAME_CHARS, one_line


def drafter_info_to_pb(info: DrafterInfo) -> pb.DrafterHello:
    return pb.DrafterHello(
        protocol_version=PROTOCOL_VERSION,
        name=info.name,
        model=info.model,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
    )


def drafter_info_from_pb(message: pb.DrafterHello) -> DrafterInfo:
    return DrafterInfo(
        name=one_line(message.name, MAX_NAME_CHARS),
        model=one_line(message.model, MAX_MODEL_CHARS),
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
    )


def draft_request_to_pb(request: DraftRequest) -> pb.DraftRequest:
    return pb.DraftRequest(
        request_id=request.request_id,
        left=request.left.tolist(),
        sequences=request.sequences.tolist(),
        num_known=request.num_known.tolist(),
        num_tokens=request.num_tokens.tolist(),
        token_ids=request.token_ids.astype("<i4").tobytes(),
        num_drafts=request.num_drafts.tolist(),
    )


def draft_request_from_pb(message: pb.DraftRequest) -> DraftRequest:
    return DraftRequest(
        request_id=message.request_id,
        left=np.array(message.left, dtype=np.int64),
        sequences=np.array(message.sequences, dtype=np.int64),
        num_known=np.array(message.num_known, dtype=np.int32),
        num_tokens=np.array(message.num_tokens, dtype=np.int32),
        token_ids=np.frombuffer(message.token_ids, dtype="<i4"),
        num_drafts=np.array(message.num_drafts, dtype=np.int32),
    )


def draft_reply_to_pb(reply: DraftReply) -> pb.DraftReply:
    return pb.DraftReply(
        request_id=reply.request_id,
        sequences=reply.sequences.tolist(),
        num_drafts=reply.num_drafts.tolist(),
        token_ids=reply.token_ids.tolist(),
    )


def draft_reply_from_pb(message: pb.DraftReply) -> DraftReply:
    """Numbers that are too large come out negative, for the reader to refuse."""
    return DraftReply(
        request_id=message.request_id,
        sequences=np.array(message.sequences, dtype=np.int64),
        num_drafts=np.array(message.num_drafts, dtype=np.int32),
        token_ids=np.array(message.token_ids, dtype=np.int32),
    )
