"""The Generate stream to one scheduler, which carries all of this gateway's requests there.

A broken stream is dialled again with back-off and jitter until the link is closed, unless the
scheduler announced that it drains. `SchedulerClient` resubmits the requests.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

import grpc

from taco_common.grpc_tls import open_channel
from taco_common.tls import Role
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.engine.request_table import RequestTable
from taco_gateway.engine.scheduler_choice import SchedulerView
from taco_gateway.engine.token_stream import TokenStream
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import MAX_MESSAGE_BYTES, PROTOCOL_VERSION, TlsConfig
from taco_proto.convert import model_info_from_pb, submit_to_pb
from taco_proto.errors import ConfigurationError
from taco_proto.grammars import GrammarTable
from taco_proto.licenses import LICENSE_INVALID
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_proto.scheduler_pb2_grpc import SchedulerStub

_log = logging.getLogger("taco.gateway.scheduler")

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # no keepalive is sent while another ping waits
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A new channel is a new connection, which may reach another scheduler.
    ("grpc.use_local_subchannel_pool", 1),
    # The link has its own back-off; the channel's would be added to it.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
_STATS_TIMEOUT_S = 5.0
_UNAVAILABLE = 503  # the scheduler drains, or none of its workers has a license


class LinkHost(Protocol):
    """The owner of links. Its methods do not wait."""

    def on_model_info(self, link: "SchedulerLink") -> None:
        """The scheduler sent a model info: the stream is new, the model changed, or it drains."""

    def on_link_lost(self, link: "SchedulerLink") -> None:
        """The stream broke; the requests in `link.requests` are no longer assigned."""

    def on_rejected(self, link: "SchedulerLink", stream: TokenStream, error: EngineError) -> None:
        """The scheduler drains or has no license, and rejected a request of `link.requests`."""


class SchedulerLink:
    """Belongs to the event loop that `start` is called on.

    Args:
        address: of the scheduler (`unix:/path` or `host:port`).
        name: of this gateway, for the scheduler's log.
        view: load and cached prefixes of the scheduler.
        tls: files that are read again at each dial; None: a connection without TLS.

    Attributes:
        info: the last model info of the scheduler; None: there was no stream yet.
        connected: the stream is open.
        draining: the scheduler accepts no new requests.
        requests: those that are assigned to this scheduler.
    """

    def __init__(
        self,
        address: str,
        name: str,
        host: LinkHost,
        view: SchedulerView,
        tls: TlsConfig | None = None,
    ) -> None:
        self.address = address
        self.view = view
        self.info: ModelInfo | None = None
        self.connected = False
        self.draining = False
        self.requests = RequestTable(self)
        self._name = name
        self._host = host
        self._tls = tls
        self._send_queue = _SendQueue()  # a new one for each stream
        self._channel: grpc.aio.Channel | None = None
        self._old_channels: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def usable(self) -> bool:
        """Whether it accepts new requests and has a worker for them."""
        return self.takes_requests and self.info is not None and self.info.ready

    @property
    def license_problem(self) -> str:
        """Why it rejects new requests for lack of a license; empty: it does not."""
        return self.info.license_problem if self.takes_requests and self.info is not None else ""

    @property
    def takes_requests(self) -> bool:
        """Whether it accepts new requests, which may have to wait for a worker."""
        return self.connected and not self.draining

    @property
    def is_leaving(self) -> bool:
        """Whether the scheduler announced that it drains: the link ends with its stream."""
        return self.info is not None and self.info.draining

    @property
    def own_load(self) -> int:
        """Estimated work of this gateway's requests at the scheduler, in prompt tokens."""
        return self.requests.load

    def start(self) -> None:
        """Starts dialling in the background."""
        self._task = asyncio.create_task(self._keep_connected())

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._channel is not None:
            await self._channel.close()
        await asyncio.gather(*self._old_channels)

    # ---------------------------------------------------------------- requests

    def submit(self, request: GenerateRequest) -> None:
        self._send_queue.submit(request)

    def cancel(self, handle: int, index: int | None = None) -> None:
        self._send_queue.cancel(handle, index)

    async def stats(self) -> pb.StatsReply:
        """Raises:
        EngineError: the scheduler does not answer (503).
        """
        if self._channel is None:
            raise EngineError(503, "The scheduler has not been dialled yet.")
        try:
            reply: pb.StatsReply = await SchedulerStub(self._channel).Stats(
                pb.StatsRequest(), timeout=_STATS_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            _log.warning("scheduler %s failed a Stats call: %s", self.address, error.details())
            raise EngineError(503, "The scheduler does not answer.") from None
        return reply

    # ------------------------------------------------------------ the stream

    async def _keep_connected(self) -> None:
        backoff = _FIRST_BACKOFF_S
        last_reason = ""
        # gRPC swallows a cancellation if the call fails at the same time before it begins.
        while not self._is_closed:
            try:
                stub = SchedulerStub(self._dialled())
            except ConfigurationError as error:
                reason = str(error)
            else:
                reason = await self._run_stream(stub)
            if self.connected:
                self.connected = self.draining = False
                backoff = _FIRST_BACKOFF_S
                _log.warning("the link to the scheduler at %s broke: %s", self.address, reason)
                self._host.on_link_lost(self)
                if self.is_leaving:
                    return
            elif reason != last_reason:
                _log.info("waiting for the scheduler at %s: %s", self.address, reason)
            last_reason = reason
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, _MAX_BACKOFF_S)

    def _dialled(self) -> grpc.aio.Channel:
        """Opens a new channel, and so a new connection: another scheduler may have the address
        now, and certificates may have been renewed.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        channel = open_channel(self.address, _CHANNEL_OPTIONS, self._tls, Role.SCHEDULER)
        old, self._channel = self._channel, channel
        if old is not None:  # a call of `stats` may still use it
            closing = asyncio.create_task(old.close(_STATS_TIMEOUT_S))
            self._old_channels.add(closing)
            closing.add_done_callback(self._old_channels.discard)
        return channel

    async def _run_stream(self, stub: SchedulerStub) -> str:
        """Serves one stream until it breaks; returns the reason."""
        self._send_queue = send_queue = _SendQueue()
        call = stub.Generate(self._outgoing(send_queue))
        try:
            async for message in call:
                match message.WhichOneof("body"):
                    case "outputs":
                        self.requests.dispatch(message.outputs, self._takes_over)
                    case "model":
                        self._meet(model_info_from_pb(message.model))
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except ValueError as error:  # columns of different lengths
            return f"it sent an invalid message: {error}"
        except Exception as error:  # a message of another version or of something else
            _log.exception("a message of the scheduler at %s cannot be read", self.address)
            return f"it sent an invalid message: {error!r}"
        finally:
            send_queue.close()
            call.cancel()
        return "it ended the stream"

    async def _outgoing(self, send_queue: "_SendQueue") -> AsyncIterator[pb.GatewayMessage]:
        hello = pb.GatewayHello(protocol_version=PROTOCOL_VERSION, name=self._name)
        yield pb.GatewayMessage(hello=hello)
        while (message := await send_queue.next_message()) is not None:
            yield message

    def _meet(self, info: ModelInfo) -> None:
        """Takes a model info: the first message of a stream, and one after each change."""
        self.info = info
        self.connected = True
        self.draining = self.draining or info.draining
        _log.info(
            "the scheduler at %s serves %s (ready: %s, draining: %s)",
            self.address,
            info.model or "no model yet",
            info.ready,
            self.draining,
        )
        self._host.on_model_info(self)

    def _takes_over(self, handle: int, error: EngineError) -> bool:
        """Whether the error is a rejection after which the request may go to another scheduler."""
        stream = self.requests.get(handle)
        if error.code != _UNAVAILABLE or stream is None:
            return False
        self.draining = self.draining or error.reason != LICENSE_INVALID
        self._host.on_rejected(self, stream, error)
        return True


class _SendQueue:
    """Messages to send on one stream: submits first, then all gathered cancellations in one."""

    def __init__(self) -> None:
        self._submits: deque[GenerateRequest] = deque()
        self._grammars = GrammarTable()
        self._cancelled: list[tuple[int, int | None]] = []
        self._ready = asyncio.Event()
        self._closed = False

    def submit(self, request: GenerateRequest) -> None:
        self._submits.append(request)
        self._ready.set()

    def cancel(self, handle: int, index: int | None = None) -> None:
        self._cancelled.append((handle, index))
        self._ready.set()

    def close(self) -> None:
        """Ends `next_message`, which gRPC leaves waiting when the stream breaks."""
        self._closed = True
        self._ready.set()

    async def next_message(self) -> pb.GatewayMessage | None:
        """Waits for a message to send; None once the queue is closed."""
        while not self._closed:
            if self._submits:
                submit = submit_to_pb(self._submits.popleft(), time.monotonic(), self._grammars)
                return pb.GatewayMessage(submit=submit)
            if self._cancelled:
                return pb.GatewayMessage(cancel=self._take_cancels())
            self._ready.clear()
            await self._ready.wait()
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
