"""The engine behind gRPC: one Generate stream carries all requests of this gateway.

When the stream breaks, it is dialled again with back-off, and the requests that still run are
submitted again with the tokens that their clients have seen, so that a scheduler's restart is a
pause. A request of several sequences cannot be resumed that way and fails with 503.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc

from taco_gateway.engine.engine_client import EngineError, EngineStats
from taco_gateway.engine.token_stream import RequestTable, TokenStream
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import MAX_MESSAGE_BYTES, PROTOCOL_VERSION
from taco_proto.convert import model_info_from_pb, output_batch_from_pb, submit_to_pb
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_proto.scheduler_pb2_grpc import SchedulerStub

_log = logging.getLogger("taco.gateway.scheduler")

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # no keepalive goes out while another ping waits
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Back-off is ours; the channel's own would be added to it.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
# So long may the scheduler be away before requests that have no deadline fail.
_PATIENCE_S = 60.0
_STATS_TIMEOUT_S = 5.0


class SchedulerClient:
    """An `EngineClient` over gRPC. Belongs to the event loop that `start` is called on.

    Args:
        address: the scheduler's (`unix:/path` or `host:port`).
        name: this gateway's, for the scheduler's log.
    """

    def __init__(self, address: str, name: str = "gateway") -> None:
        self._address = address
        self._name = name
        self._info: ModelInfo | None = None
        self._connected = False
        self._outbox = _Outbox()  # a new one for each stream
        self._requests = RequestTable(self)
        self._channel: grpc.aio.Channel | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to dial, in the background."""
        self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
        self._task = asyncio.create_task(self._keep_connected(SchedulerStub(self._channel)))

    def model_info(self) -> ModelInfo | None:
        if self._info is None or self._connected:
            return self._info
        return replace(self._info, ready=False)

    def generate(self, request: GenerateRequest) -> TokenStream:
        return self._requests.generate(request)

    def submit(self, request: GenerateRequest) -> None:
        """Sends a request that is in the table, or leaves it to be sent when there is a stream."""
        if self._connected:
            self._outbox.submit(request)

    def cancel(self, handle: int, index: int | None = None) -> None:
        if self._connected:
            self._outbox.cancel(handle, index)

    async def stats(self) -> EngineStats:
        if self._channel is None:
            raise EngineError(503, "The scheduler has not been dialled yet.")
        try:
            reply = await SchedulerStub(self._channel).Stats(
                pb.StatsRequest(), timeout=_STATS_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            _log.warning("the scheduler gives no statistics: %s", error.details())
            raise EngineError(503, "The scheduler does not answer.") from None
        return EngineStats(
            num_running=reply.num_running,
            num_waiting=reply.num_waiting,
            kv_cache_usage=reply.kv_cache_usage,
            num_free_blocks=reply.num_free_blocks,
            num_blocks=reply.num_blocks,
            num_workers=reply.num_workers,
            prometheus=reply.prometheus,
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._requests.fail_all(EngineError(503, "The gateway is shutting down."))
        if self._channel is not None:
            await self._channel.close()

    # ------------------------------------------------------------ the stream

    async def _keep_connected(self, stub: SchedulerStub) -> None:
        backoff = _FIRST_BACKOFF_S
        lost_since = time.monotonic()
        last_reason = ""
        while True:
            reason = await self._run_stream(stub)
            if self._connected:
                self._connected = False
                backoff, lost_since = _FIRST_BACKOFF_S, time.monotonic()
                _log.warning("the link to the scheduler broke: %s", reason)
            elif reason != last_reason:
                _log.info("waiting for the scheduler: %s", reason)
            last_reason = reason
            self._fail_the_impatient(lost_since)
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, _MAX_BACKOFF_S)

    async def _run_stream(self, stub: SchedulerStub) -> str:
        """Serves one stream until it breaks; says why it did."""
        self._outbox = outbox = _Outbox()
        call = stub.Generate(self._outgoing(outbox))
        try:
            async for message in call:
                match message.WhichOneof("body"):
                    case "outputs":
                        self._requests.dispatch(output_batch_from_pb(message.outputs))
                    case "model":
                        self._meet(model_info_from_pb(message.model))
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except ValueError as error:  # columns that do not fit together
            return f"it sent nonsense: {error}"
        finally:
            outbox.close()
            call.cancel()
        return "it ended the stream"

    async def _outgoing(self, outbox: "_Outbox") -> AsyncIterator[pb.GatewayMessage]:
        hello = pb.GatewayHello(protocol_version=PROTOCOL_VERSION, name=self._name)
        yield pb.GatewayMessage(hello=hello)
        while (message := await outbox.next_message()) is not None:
            yield message

    def _meet(self, info: ModelInfo) -> None:
        """The scheduler says what it serves: the first message on a stream, and on every change."""
        before = self._info
        if before is not None and before.model and not info.model:
            info = replace(before, ready=False)  # a scheduler that no worker has found yet
        self._info = info
        if before is not None and before.model not in ("", info.model):
            self._requests.fail_all(EngineError(503, "Another model is served now."))
        if not self._connected:
            self._connected = True
            for stream in self._requests:
                self._resume(stream)
        _log.info("the scheduler serves %s (ready: %s)", info.model or "no model yet", info.ready)

    def _resume(self, stream: TokenStream) -> None:
        request = stream.request
        if request.sampling.num_sequences > 1 and not stream.is_untouched:
            self._requests.fail(stream, EngineError(503, "The scheduler was lost."))
            return
        self._outbox.submit(replace(request, emitted_token_ids=stream.emitted.tobytes()))

    def _fail_the_impatient(self, lost_since: float) -> None:
        impatient = time.monotonic() - lost_since > _PATIENCE_S
        for stream in self._requests:
            deadline = stream.request.deadline
            if deadline is not None and time.time() > deadline:
                self._requests.fail(stream, EngineError(504, "No engine came in time."))
            elif deadline is None and impatient:
                self._requests.fail(stream, EngineError(503, "The scheduler was lost."))


class _Outbox:
    """What goes up on one stream: submits first, then the cancels that gathered, in one message."""

    def __init__(self) -> None:
        self._submits: deque[pb.Submit] = deque()
        self._cancelled: list[tuple[int, int | None]] = []
        self._news = asyncio.Event()
        self._closed = False

    def submit(self, request: GenerateRequest) -> None:
        self._submits.append(submit_to_pb(request))
        self._news.set()

    def cancel(self, handle: int, index: int | None = None) -> None:
        self._cancelled.append((handle, index))
        self._news.set()

    def close(self) -> None:
        """Ends the reader: gRPC leaves it waiting when the stream breaks."""
        self._closed = True
        self._news.set()

    async def next_message(self) -> pb.GatewayMessage | None:
        """Waits for news; None when the outbox is closed."""
        while not self._closed:
            if self._submits:
                return pb.GatewayMessage(submit=self._submits.popleft())
            if self._cancelled:
                return pb.GatewayMessage(cancel=self._take_cancels())
            self._news.clear()
            await self._news.wait()
        return None

    def _take_cancels(self) -> pb.Cancel:
        # A message names either whole requests or single sequences.
        whole = self._cancelled[0][1] is None
        taken = [entry for entry in self._cancelled if (entry[1] is None) == whole]
        self._cancelled = [entry for entry in self._cancelled if (entry[1] is None) != whole]
        return pb.Cancel(
            handles=[handle for handle, _ in taken],
            indexes=[index for _, index in taken if index is not None],
        )
