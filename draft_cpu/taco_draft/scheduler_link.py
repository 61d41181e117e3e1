"""A draft worker's AttachDrafter stream to the scheduler: receives requests, sends drafts."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import grpc
import grpc.aio

from taco_draft.counters import DraftCounters
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import TlsConfig
from taco_proto.convert_drafts import draft_reply_to_pb, draft_request_from_pb, drafter_info_to_pb
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_worker.model_thread import ModelThread
from taco_worker.stream_link import StreamLink

logger = logging.getLogger("taco.draft-worker")


class Runner(Protocol):
    """Interface of `DraftRunner`."""

    info: DrafterInfo
    counters: DraftCounters

    def draft(self, request: DraftRequest) -> DraftReply: ...

    def reset(self) -> None: ...


class DraftSchedulerLink(StreamLink[pb.DrafterMessage, pb.DraftRequest]):
    """The draft worker's end of the stream. A new stream starts without sequences.

    The link ends after a failed request. It does not reconnect if the scheduler rejects it.
    """

    # Reconnecting does not help against another protocol version or another vocabulary.
    final_codes = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)

    def __init__(
        self,
        address: str,
        runner: Runner,
        thread: ModelThread,
        tls: TlsConfig | None = None,
    ) -> None:
        super().__init__(address, thread, tls)
        self._runner = runner

    def _open(self, stub: SchedulerStub) -> grpc.aio.StreamStreamCall:
        return stub.AttachDrafter()

    def _hello(self) -> pb.DrafterMessage:
        return pb.DrafterMessage(hello=drafter_info_to_pb(self._runner.info))

    def _heartbeat(self) -> pb.DrafterMessage:
        return pb.DrafterMessage(heartbeat=pb.Heartbeat())

    def _job(self, message: pb.DraftRequest) -> Callable[[], None]:
        return partial(self._serve, draft_request_from_pb(message))

    def _reset(self) -> None:
        self._runner.reset()

    def _serve(self, request: DraftRequest) -> None:
        """Answer a request; runs in the model's thread."""
        reply, failure = DraftReply(request_id=request.request_id), ""
        try:
            reply = self._runner.draft(request)
        except Exception as error:
            logger.exception("draft request %d failed", request.request_id)
            failure = f"drafting failed, the draft worker must be restarted: {error}"
        self._send_answer(pb.DrafterMessage(reply=draft_reply_to_pb(reply)), failure)
