"""The engine behind gRPC: one scheduler, or several of one model.

A request that loses its place (its scheduler dies, shuts down, or has no worker left while another
one has) is submitted again, with the tokens that its client has of each sequence, to a scheduler
that takes it: so the death of one is a pause, and so is the restart of the only one.

An address may be that of several processes one after another, as a Service's in Kubernetes is. As
soon as a scheduler says that it shuts down its address is dialled anew, beside the stream on which
its requests may end. Until the next one is found, which may take a while, requests are taken and
wait.

Whom to dial is told by a list or by the registry in Redis; whom to use, by the streams alone. A
scheduler with a stream is used whatever Redis says: it may have been flushed, or out of that
scheduler's reach. One without a stream is dialled as long as it has a record, and for
`FORGET_SECONDS` of readings beyond that.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from taco_gateway.engine.engine_client import EngineError, EngineStats
from taco_gateway.engine.expositions import merge_expositions
from taco_gateway.engine.placement import SchedulerView, place
from taco_gateway.engine.registry_reader import RegistryReader, SeenRecord
from taco_gateway.engine.scheduler_link import SchedulerLink
from taco_gateway.engine.token_stream import RequestTable, TokenStream
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import TlsConfig
from taco_proto.licenses import LICENSE_INVALID
from taco_proto.registry import KEY_BYTES
from taco_proto.requests import GenerateRequest, ModelInfo

if TYPE_CHECKING:  # gateways without Redis do not pay for its client
    from taco_common.redis_link import RedisLink

_log = logging.getLogger("taco.gateway.scheduler")

# So long may all schedulers be away before requests that have no deadline fail.
_PATIENCE_S = 60.0
# So long may the next one take to come, after one has said that it shuts down.
_HANDOVER_S = 60.0
_TICK_S = 0.5
FORGET_SECONDS = 30.0

_LOST = EngineError(503, "The scheduler was lost.")


class SchedulerClient:
    """An `EngineClient` over gRPC. Belongs to the event loop that `start` is called on.

    Args:
        addresses: the schedulers' (`unix:/path` or `host:port`).
        name: this gateway's, for the schedulers' logs.
        redis: where more of them are found, if they serve `model`; None: there are no others.
        model: its name.
        tls: of the links to them; None: they are in plaintext.
    """

    def __init__(
        self,
        *addresses: str,
        name: str = "gateway",
        redis: "RedisLink | None" = None,
        model: str = "",
        tls: TlsConfig | None = None,
    ) -> None:
        self._name = name
        self._tls = tls
        self._links: dict[str, SchedulerLink] = {}
        self._leaving: list[SchedulerLink] = []  # each has a successor in `_links`, or had one
        self._homeless = RequestTable(_Nowhere())
        self._info: ModelInfo | None = None
        self._is_usable = False
        self._lost_since = time.monotonic()
        self._handover_end = float("-inf")
        self._absent_since: dict[str, float] = {}
        self._hash_key = secrets.token_bytes(KEY_BYTES)
        self._reader = None if redis is None else RegistryReader(redis, model, self.follow)
        self._ticker: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        for address in addresses:
            self._add(address)

    def start(self) -> None:
        """Begins to dial, in the background."""
        self._ticker = asyncio.create_task(self._tick())
        for link in self._links.values():
            link.start()
        if self._reader is not None:
            self._reader.start()

    def model_info(self) -> ModelInfo | None:
        return self._info

    def generate(self, request: GenerateRequest) -> TokenStream:
        stream = self._homeless.generate(request)
        self._place(stream)
        return stream

    async def stats(self) -> EngineStats:
        # Of two at one address the new one counts.
        every = [*self._leaving, *self._links.values()]
        links = [link for link in every if link.connected] or every
        found = await asyncio.gather(*(link.stats() for link in links), return_exceptions=True)
        replies: dict[str, pb.StatsReply] = {}
        for link, reply in zip(links, found, strict=True):
            if isinstance(reply, pb.StatsReply):
                replies[link.address] = reply
            elif not isinstance(reply, EngineError):
                raise reply
        if not replies:
            raise EngineError(503, "The scheduler does not answer.")
        return _sum_of(replies)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        links = [*self._leaving, *self._links.values()]
        await asyncio.gather(*(link.close() for link in links), *self._closing)
        for requests in self._tables():
            requests.fail_all(EngineError(503, "The gateway is shutting down."))

    # -------------------------------------------------------------- schedulers

    def follow(self, seen: Mapping[str, SeenRecord]) -> None:
        """The registry was read: these schedulers have records."""
        now = time.monotonic()
        for address, record in seen.items():
            link = self._links.get(address)
            if link is None:
                _log.info("found a scheduler at %s", address)
                link = self._add(address)
                link.start()
            link.view.update(record.record, record.written_at)
            self._absent_since.pop(address, None)
        for address in [address for address in self._links if address not in seen]:
            if self._links[address].connected:
                self._absent_since.pop(address, None)
            elif now - self._absent_since.setdefault(address, now) > FORGET_SECONDS:
                self._forget(address)

    def _add(self, address: str) -> SchedulerLink:
        view = SchedulerView(self._hash_key)
        link = SchedulerLink(address, self._name, self, view, self._tls)
        self._links[address] = link
        return link

    def _forget(self, address: str) -> None:
        _log.info("the scheduler at %s is gone", address)
        del self._absent_since[address]
        self._close(self._links.pop(address))

    def _close(self, link: SchedulerLink) -> None:
        closing = asyncio.create_task(link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _succeed(self, link: SchedulerLink) -> None:
        """Its scheduler shuts down: another one may be behind the same address."""
        self._leaving.append(link)
        self._handover_end = time.monotonic() + _HANDOVER_S
        self._add(link.address).start()

    def met(self, link: SchedulerLink) -> None:
        info = link.info
        if link.is_leaving and link not in self._leaving:
            self._succeed(link)
        if info is not None and self._info is not None and _is_other(info, self._info):
            if any(other.usable for other in self._usable() if other is not link):
                _log.error(
                    "the scheduler at %s serves %s, the others %s: it is not used",
                    link.address,
                    info.model,
                    self._info.model,
                )
            else:
                for requests in self._tables():
                    requests.fail_all(EngineError(503, "Another model is served now."))
                self._info = info
        self._settle()

    def lost(self, link: SchedulerLink) -> None:
        for stream in link.requests:
            stream.quota_charged = True
            self._uproot(stream, link)
        if link in self._leaving:
            self._leaving.remove(link)
            self._close(link)
        self._settle()

    def refused(self, link: SchedulerLink, stream: TokenStream, error: EngineError) -> None:
        if self._goes_elsewhere(link, stream, error):
            self._uproot(stream, link)
            self._settle()
        else:
            link.requests.fail(stream, error)

    # ---------------------------------------------------------------- requests

    def _place(self, stream: TokenStream) -> None:
        """Finds a place for a request that has none, if there is one."""
        links = self._usable() or [link for link in self._serving() if link.takes_requests]
        if not links:
            return
        request = stream.remainder() if len(links) > 1 else stream.request
        link, stream.num_missing_tokens = place(request, links, time.monotonic())
        self._homeless.remove(stream)
        link.requests.adopt(stream)

    def _settle(self) -> None:
        """Something changed: everybody goes where there is a place."""
        usable = self._usable()
        if usable:
            for link in self._links.values():
                # Without a license what has begun finishes, and what has not is refused.
                if link.takes_requests and not link.usable and not link.license_problem:
                    self._take_back(link)
        for stream in self._homeless:
            self._place(stream)
        self._refresh(usable)

    def _take_back(self, link: SchedulerLink) -> None:
        """A scheduler has no worker now, and others have. Each request goes away once: one that
        kills workers must not get at all of them, as no scheduler would know of the others.
        """
        for stream in link.requests:
            if not stream.was_taken_back:
                stream.was_taken_back = stream.quota_charged = True
                link.cancel(stream.request.handle)
                self._uproot(stream, link)

    def _goes_elsewhere(self, link: SchedulerLink, stream: TokenStream, error: EngineError) -> bool:
        """Whether a request that a scheduler refuses waits for a place at another one."""
        if error.reason != LICENSE_INVALID:
            return True
        # Only to one that has a license, and once: it must not go round in circles.
        if stream.was_taken_back or not any(other is not link for other in self._usable()):
            return False
        stream.was_taken_back = True
        return True

    def _uproot(self, stream: TokenStream, link: SchedulerLink) -> None:
        stream.wait_anew(time.monotonic())
        link.requests.remove(stream)
        self._homeless.adopt(stream)

    def _tables(self) -> Iterable[RequestTable]:
        links = (*self._leaving, *self._links.values())
        return (self._homeless, *(link.requests for link in links))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._fail_the_impatient()
            self._refresh(self._usable())  # a handover may have taken too long

    def _fail_the_impatient(self) -> None:
        now = time.monotonic()
        impatient = now - self._lost_since > _PATIENCE_S
        for stream in self._homeless:
            deadline = stream.request.deadline
            if deadline is not None and now > deadline:
                self._homeless.fail(stream, EngineError(504, "No engine came in time."))
            elif deadline is None and impatient and not self._is_usable:
                self._homeless.fail(stream, _LOST)

    # ------------------------------------------------------------------- model

    def _serving(self) -> list[SchedulerLink]:
        """Those that serve the model, or will when they have a worker."""
        return [link for link in self._links.values() if self._serves_model(link)]

    def _serves_model(self, link: SchedulerLink) -> bool:
        if link.info is None:
            return False
        return self._info is None or not _is_other(link.info, self._info)

    def _usable(self) -> list[SchedulerLink]:
        return [link for link in self._serving() if link.usable]

    def _refresh(self, usable: list[SchedulerLink]) -> None:
        """What all schedulers together serve. A request goes to one that can run it."""
        if self._is_usable and not usable:
            self._lost_since = time.monotonic()
        self._is_usable = bool(usable)
        infos = [link.info for link in usable if link.info is not None]
        if infos:
            self._info = replace(
                infos[0],
                max_model_len=max(info.max_model_len for info in infos),
                num_blocks=sum(info.num_blocks for info in infos),
                max_logprobs=min(info.max_logprobs for info in infos),
            )
        elif self._info is not None:
            problems = (link.license_problem for link in self._serving())
            problem = next(filter(None, problems), "")
            if not problem and self._info.ready and time.monotonic() < self._handover_end:
                return  # as if the next one was there: requests wait for it
            self._info = replace(self._info, ready=False, license_problem=problem)
        else:
            self._info = next((link.info for link in self._serving()), None)


class _Nowhere:
    """Where requests wait for a scheduler."""

    def submit(self, request: GenerateRequest) -> None:
        pass

    def cancel(self, handle: int, index: int | None = None) -> None:
        pass


def _is_other(info: ModelInfo, known: ModelInfo) -> bool:
    """Neither could take over the other's requests. A scheduler without a worker may serve any."""
    if not info.model or not known.model:
        return False
    return (info.model, info.vocab_size, info.eos_token_ids) != (
        known.model,
        known.vocab_size,
        known.eos_token_ids,
    )


def _sum_of(replies: Mapping[str, pb.StatsReply]) -> EngineStats:
    rows = list(replies.values())
    num_blocks = sum(reply.num_blocks for reply in rows)
    used = sum(reply.kv_cache_usage * reply.num_blocks for reply in rows)
    return EngineStats(
        num_running=sum(reply.num_running for reply in rows),
        num_waiting=sum(reply.num_waiting for reply in rows),
        kv_cache_usage=used / num_blocks if num_blocks else 0.0,
        num_free_blocks=sum(reply.num_free_blocks for reply in rows),
        num_blocks=num_blocks,
        num_workers=sum(reply.num_workers for reply in rows),
        prometheus=merge_expositions(
            {address: reply.prometheus for address, reply in replies.items()}
        ),
    )
