"""Authorization of gRPC calls: which role, proven by a TLS certificate, may call which method."""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from taco_common.tls import Role

logger = logging.getLogger("taco.tls")

HEALTH_SERVICE = "grpc.health.v1.Health"
ANY_ROLE = frozenset(Role)

Context = grpc.aio.ServicerContext[Any, Any]
# An asynchronous function or generator, of a request or an iterator of requests, and the context.
Behaviour = Callable[[Any, Context], Any]


def peer_roles(context: Context) -> frozenset[Role]:
    """The roles that the caller's certificate proves; none without TLS."""
    names = {name.decode() for name in context.auth_context().get("peer_dns", ())}
    return frozenset(role for role in Role if role.dns_name in names)


class RoleInterceptor(grpc.aio.ServerInterceptor):
    """Rejects calls whose role is not allowed with PERMISSION_DENIED.

    Args:
        allowed: the roles that may call a service, or one method of it, by `package.Service` or
            `package.Service/Method`. A method that is not named rejects all calls, except health
            checks.
    """

    def __init__(self, allowed: Mapping[str, frozenset[Role]]) -> None:
        self._allowed = {HEALTH_SERVICE: ANY_ROLE, **allowed}
        self._logged: set[tuple[str, str]] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:  # there is no such method
            return None
        method = str(handler_call_details.method).removeprefix("/")
        service = method.partition("/")[0]
        allowed = self._allowed.get(method, self._allowed.get(service, frozenset()))

        async def check(context: Context) -> None:
            roles = peer_roles(context)
            if roles.isdisjoint(allowed):
                await self._reject(context, method, "/".join(sorted(roles)) or "no role")

        return _checked(handler, check)

    async def _reject(self, context: Context, method: str, role: str) -> None:
        if (role, method) not in self._logged:  # logged once: the caller retries
            self._logged.add((role, method))
            logger.warning("%s: a certificate for %s may not call %s", context.peer(), role, method)
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"a certificate for {role} may not call {method}"
        )


def _checked(handler: Any, check: Callable[[Context], Awaitable[None]]) -> Any:
    """The handler of a method, with `check` called first."""
    asks, answers = (
        "stream" if streams else "unary"
        for streams in (handler.request_streaming, handler.response_streaming)
    )
    behaviour: Behaviour = getattr(handler, f"{asks}_{answers}")
    guarded = _guarded_generator if inspect.isasyncgenfunction(behaviour) else _guarded_function
    make = getattr(grpc, f"{asks}_{answers}_rpc_method_handler")
    return make(
        guarded(behaviour, check), handler.request_deserializer, handler.response_serializer
    )


def _guarded_function(
    behaviour: Behaviour, check: Callable[[Context], Awaitable[None]]
) -> Behaviour:
    async def guarded(request: Any, context: Context) -> Any:
        await check(context)
        return await behaviour(request, context)

    return guarded


def _guarded_generator(
    behaviour: Behaviour, check: Callable[[Context], Awaitable[None]]
) -> Behaviour:
    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        await check(context)
        async with aclosing(behaviour(request, context)) as replies:
            async for reply in replies:
                yield reply

    return guarded
