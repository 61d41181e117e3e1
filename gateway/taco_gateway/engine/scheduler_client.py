"""The gateway's client of the schedulers: sends requests, and resubmits them after a fault.

Failover: see `failover`.

Handover: several processes may follow each other at one address, as behind a Kubernetes Service.
When a scheduler announces that it drains, the client dials its address again and keeps the old
stream for the requests that still run there. New requests are accepted meanwhile, and wait.

Discovery: a list of addresses or the registry in Redis says which schedulers to dial. A scheduler
with a stream is used whatever Redis says, because Redis may have lost its data. A scheduler without
a stream is dialled while it has a record, and for `FORGET_SECONDS` after the record disappeared.
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
from taco_gateway.engine.failover import UnassignedRequests, may_reassign
from taco_gateway.engine.merged_metrics import merge_metrics
from taco_gateway.engine.registry_reader import RegistryReader, SeenRecord
from taco_gateway.engine.request_table import RequestTable
from taco_gateway.engine.scheduler_choice import SchedulerView, choose_scheduler
from taco_gateway.engine.scheduler_link import SchedulerLink
from taco_gateway.engine.token_stream import TokenStream
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import TlsConfig
from taco_proto.registry import KEY_BYTES
from taco_proto.requests import GenerateRequest, ModelInfo

if TYPE_CHECKING:  # a gateway without Redis need not load its client
    from taco_common.redis_link import RedisLink

_log = logging.getLogger("taco.gateway.scheduler")

_OTHER_MODEL = EngineError(503, "Another model is served now.")
_CLOSED = EngineError(503, "The gateway is shutting down.")
# Seconds without any scheduler after which requests without a deadline fail.
_LOST_TIMEOUT_S = 60.0
# Seconds that the next scheduler may take to appear after one announced that it drains.
_HANDOVER_S = 60.0
_TICK_S = 0.5
# Seconds for which a scheduler without a record in Redis is still dialled.
FORGET_SECONDS = 30.0


class SchedulerClient:
    """An `EngineClient` over gRPC. Belongs to the event loop that `start` is called on.

    Args:
        addresses: of the schedulers (`unix:/path` or `host:port`).
        name: of this gateway, for the schedulers' logs.
        redis: registry with more schedulers; None: only `addresses` are used.
        model: schedulers in the registry that serve another model are ignored.
        tls: certificates of the connections; None: connections without TLS.
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
        self._leaving: list[SchedulerLink] = []  # draining; `_links` has successors
        self._unassigned = UnassignedRequests()
        self._info: ModelInfo | None = None
        self._is_usable = False
        self._lost_since = time.monotonic()
        self._handover_end = float("-inf")
        self._absent_since: dict[str, float] = {}
        self._hash_key = secrets.token_bytes(KEY_BYTES)
        self._reader = (
            None if redis is None else RegistryReader(redis, model, self.on_registry_read)
        )
        self._ticker: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        for address in addresses:
            self._add(address)

    def start(self) -> None:
        """Starts dialling in the background."""
        self._ticker = asyncio.create_task(self._tick())
        for link in self._links.values():
            link.start()
        if self._reader is not None:
            self._reader.start()

    def model_info(self) -> ModelInfo | None:
        return self._info

    def generate(self, request: GenerateRequest) -> TokenStream:
        stream = self._unassigned.table.generate(request)
        if self._is_closed:
            self._unassigned.table.fail(stream, _CLOSED)
        else:
            self._assign(stream)
        return stream

    async def stats(self) -> EngineStats:
        # Of two links with one address, the new one counts.
        every = [*self._leaving, *self._links.values()]
        links = [link for link in every if link.connected] or every
        found = await asyncio.gather(*(link.stats() for link in links), return_exceptions=True)
        replies: dict[str, pb.StatsReply] = {}
        for link, reply in zip(links, found, strict=True):
            if isinstance(reply, pb.StatsReply):
                replies[link.address] = reply
            elif not isinstance(reply, EngineError | asyncio.CancelledError):
                raise reply  # a call is cancelled if its link is closed meanwhile
        if not replies:
            raise EngineError(503, "The scheduler does not answer.")
        return _sum_of(replies)

    async def close(self) -> None:
        """Ends all connections. Open requests and later ones fail."""
        self._is_closed = True
        if self._reader is not None:
            await self._reader.close()
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        links = [*self._leaving, *self._links.values()]
        await asyncio.gather(*(link.close() for link in links), *self._closing)
        for requests in self._tables():
            requests.fail_all(_CLOSED)

    # -------------------------------------------------------------- schedulers

    def on_registry_read(self, seen: Mapping[str, SeenRecord]) -> None:
        """Dials schedulers that have a record, and forgets those that have had none for a while."""
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

    def _dial_successor(self, link: SchedulerLink) -> None:
        """Dials the address of a draining scheduler again: its successor may answer."""
        self._leaving.append(link)
        self._handover_end = time.monotonic() + _HANDOVER_S
        self._add(link.address).start()

    def on_model_info(self, link: SchedulerLink) -> None:
        info = link.info
        if link.is_leaving and link not in self._leaving:
            self._dial_successor(link)
        if info is not None and self._info is not None and _is_other_model(info, self._info):
            if any(other.usable for other in self._usable() if other is not link):
                _log.error(
                    "the scheduler at %s serves %s, the others %s: it is not used",
                    link.address,
                    info.model,
                    self._info.model,
                )
            else:
                # A scheduler that drains still serves the earlier model.
                for requests in self._tables(with_leaving=False):
                    requests.cancel_all(_OTHER_MODEL)
                self._info = info
        self._reassign()

    def on_link_lost(self, link: SchedulerLink) -> None:
        if self._serves_other_model(link):
            link.requests.fail_all(_OTHER_MODEL)
        else:
            self._unassigned.detach_all(link)
        if link in self._leaving:
            self._leaving.remove(link)
            self._close(link)
        self._reassign()

    def on_rejected(self, link: SchedulerLink, stream: TokenStream, error: EngineError) -> None:
        has_others = any(other is not link for other in self._usable())
        if self._serves_other_model(link):
            link.requests.fail(stream, _OTHER_MODEL)
        elif may_reassign(stream, error, has_others=has_others):
            self._unassigned.detach(stream, link)
            self._reassign()
        else:
            link.requests.fail(stream, error)

    # ---------------------------------------------------------------- requests

    def _assign(self, stream: TokenStream) -> None:
        """Assigns an unassigned request to a scheduler, if one takes requests."""
        links = self._usable() or [link for link in self._serving() if link.takes_requests]
        if not links:
            return
        request = stream.remainder() if len(links) > 1 else stream.request
        link, stream.num_missing_tokens = choose_scheduler(request, links, time.monotonic())
        self._unassigned.table.remove(stream)
        link.requests.attach(stream)

    def _reassign(self) -> None:
        """Assigns requests again after a scheduler changed its state."""
        usable = self._usable()
        if usable:
            for link in self._links.values():
                # Without a license, running requests finish and waiting ones are rejected.
                if link.takes_requests and not link.usable and not link.license_problem:
                    self._unassigned.withdraw(link)
        for stream in self._unassigned:
            self._assign(stream)
        self._refresh(usable)

    def _tables(self, *, with_leaving: bool = True) -> Iterable[RequestTable]:
        links = (*(self._leaving if with_leaving else ()), *self._links.values())
        return (self._unassigned.table, *(link.requests for link in links))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            waited = time.monotonic() - self._lost_since
            self._unassigned.fail_expired(is_lost=waited > _LOST_TIMEOUT_S and not self._is_usable)
            self._refresh(self._usable())  # the handover may have timed out

    # ------------------------------------------------------------------- model

    def _serving(self) -> list[SchedulerLink]:
        """Links to schedulers that serve the model, or will once they have a worker."""
        return [link for link in self._links.values() if self._serves_model(link)]

    def _serves_other_model(self, link: SchedulerLink) -> bool:
        """Whether a scheduler that drains serves an earlier model: no other can end its answers."""
        return link in self._leaving and link.info is not None and not self._serves_model(link)

    def _serves_model(self, link: SchedulerLink) -> bool:
        if link.info is None:
            return False
        return self._info is None or not _is_other_model(link.info, self._info)

    def _usable(self) -> list[SchedulerLink]:
        return [link for link in self._serving() if link.usable]

    def _refresh(self, usable: list[SchedulerLink]) -> None:
        """Updates the model info: the limits of all schedulers together."""
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
                logits_processors=_of_all([info.logits_processors for info in infos]),
                adapters=_of_all([info.adapters for info in infos]),
            )
        elif self._info is not None:
            problems = (link.license_problem for link in self._serving())
            problem = next(filter(None, problems), "")
            if not problem and self._info.ready and time.monotonic() < self._handover_end:
                return  # requests wait for the successor
            self._info = replace(self._info, ready=False, license_problem=problem)
        else:
            self._info = next((link.info for link in self._serving()), None)


def _of_all(loaded: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What the workers of all schedulers have loaded, in the order of the first."""
    return tuple(name for name in loaded[0] if all(name in names for names in loaded))


def _is_other_model(info: ModelInfo, known: ModelInfo) -> bool:
    """Whether requests cannot move between the two. Without a worker, a model is not known yet."""
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
        prometheus=merge_metrics({address: reply.prometheus for address, reply in replies.items()}),
    )
