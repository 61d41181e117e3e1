"""Applies the tenants' rate limits, which all gateways share through Redis, before the engine."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from taco_gateway.engine.engine_client import (
    EngineClient,
    EngineError,
    EngineStats,
    SequenceUpdate,
    UpdateStream,
)
from taco_proto.limits import has_limits
from taco_proto.requests import FinishReason, GenerateRequest, ModelInfo, Tenant

if TYPE_CHECKING:
    from taco_gateway.engine.shared_rate_limits import SharedRateLimits, Ticket

TOKEN_BYTES = 4


class RateLimitedClient:
    """An `EngineClient` that admits a request by its tenant's rate limits and passes it on.

    A request that Redis admitted reaches the scheduler without limits, so that it is not counted
    twice. While Redis is unreachable the scheduler applies the limits by itself.
    """

    def __init__(self, client: EngineClient, limits: "SharedRateLimits") -> None:
        self._client = client
        self._limits = limits

    def model_info(self) -> ModelInfo | None:
        return self._client.model_info()

    def generate(self, request: GenerateRequest) -> UpdateStream:
        if not has_limits(request.tenant):
            return self._client.generate(request)
        return _LimitedStream(self._client, self._limits, request)

    async def stats(self) -> EngineStats:
        return await self._client.stats()

    async def close(self) -> None:
        await self._client.close()


class _LimitedStream:
    """The updates of a request, which is admitted and submitted when the reader starts."""

    def __init__(
        self, client: EngineClient, limits: "SharedRateLimits", request: GenerateRequest
    ) -> None:
        self._client = client
        self._limits = limits
        self._request = request
        self._running = set(range(request.sampling.num_outputs))
        self._has_tokens = False
        self._in_bulk = False
        self._ticket: Ticket | None = None
        self._stream: UpdateStream | None = None

    def __aiter__(self) -> AsyncIterator[SequenceUpdate]:
        return self

    async def __anext__(self) -> SequenceUpdate:
        ticket, stream = self._ticket, self._stream
        if ticket is None or stream is None:
            ticket, stream = await self._begin()
        try:
            update = await anext(stream)
        except EngineError as error:
            ticket.end(refund=error.code in (429, 503) and not self._has_tokens)
            raise
        except StopAsyncIteration:
            ticket.end()
            raise
        if update.token_ids:
            self._has_tokens = True
            ticket.spend(self._num_generated(update))
        if update.finish_reason != FinishReason.RUNNING:
            self._leave(update.index)
        return update

    def read_in_bulk(self) -> None:
        self._in_bulk = True

    def cancel(self, index: int) -> None:
        if self._stream is not None:
            self._stream.cancel(index)
        self._leave(index)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._ticket is not None:
            self._ticket.end()

    async def _begin(self) -> "tuple[Ticket, UpdateStream]":
        request = self._request
        num_tokens = len(request.token_ids) // TOKEN_BYTES
        ticket = self._ticket = await self._limits.admit(request.tenant, num_tokens)
        if ticket.is_shared:
            request = replace(request, tenant=_without_limits(request.tenant))
        self._stream = self._client.generate(request)
        if self._in_bulk:
            self._stream.read_in_bulk()
        return ticket, self._stream

    def _num_generated(self, update: SequenceUpdate) -> int:
        """Tokens generated for an update. For each text of a beam search's answer there were more
        beams, of about its length."""
        sampling = self._request.sampling
        return len(update.token_ids) * sampling.num_sequences // sampling.num_outputs

    def _leave(self, index: int) -> None:
        """Frees the request's concurrency before its client learns of the end and sends another."""
        self._running.discard(index)
        if not self._running and self._ticket is not None:
            self._ticket.end()


def _without_limits(tenant: Tenant) -> Tenant:
    return Tenant(name=tenant.name, weight=tenant.weight)
