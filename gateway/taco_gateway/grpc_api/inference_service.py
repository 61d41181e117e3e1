"""The Inference service: chat and completions over gRPC, for internal services.

Errors are gRPC statuses: INVALID_ARGUMENT (trailing metadata `param` names the field), NOT_FOUND,
UNAUTHENTICATED, PERMISSION_DENIED, RESOURCE_EXHAUSTED (`retry-after`: seconds until a retry),
UNAVAILABLE, FAILED_PRECONDITION (no worker has a license, `code` is license_invalid: an operator
must fix it before a retry can succeed), DEADLINE_EXCEEDED, INTERNAL. A client that disconnects
cancels its request.
"""

import logging
import time
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from taco_common.grpc_tls import add_port
from taco_common.listener import is_private
from taco_common.peer_roles import RoleInterceptor
from taco_common.tls import Role
from taco_gateway.api_errors import CLIENT_CLOSED_REQUEST, ApiError, as_api_error
from taco_gateway.api_keys.authentication import bearer_key
from taco_gateway.api_keys.key_ring import KeyRing
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.gateway import Gateway
from taco_gateway.grpc_api.field_limit import FieldLimitInterceptor
from taco_gateway.grpc_api.health_service import HealthService
from taco_gateway.grpc_api.logprob_messages import logprob_message
from taco_gateway.grpc_api.prompt_cache_fields import CacheFields, cache_fields
from taco_gateway.protocol.conversation import MAX_MESSAGES
from taco_gateway.protocol.token_ids import MAX_TOKEN_IDS
from taco_gateway.request_log import GRPC_METHOD, RequestLog
from taco_gateway.text.grammar.answer_rules import AnswerWish
from taco_gateway.usage_and_latency import RequestStats
from taco_proto import inference_pb2 as pb
from taco_proto.errors import ConfigurationError, InvalidParameterError
from taco_proto.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server
from taco_proto.licenses import LICENSE_INVALID
from taco_proto.logits_processors import EXTRA_ARGS, extra_args_from_json
from taco_proto.requests import PrefixPin
from taco_proto.structured_outputs import PARAM, StructuredOutputsParams

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Inference"].full_name
MAX_MESSAGE_BYTES = 8 * 2**20
# Roles that may call it, when certificates prove the role of the caller.
CALLERS = frozenset({Role.CLIENT, Role.GATEWAY})
ROLES = frozenset({"system", "developer", "user", "assistant"})

_STATUS_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_EARLY_STOPPING = {"true": True, "false": False}
_SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a port in use is an error
)

logger = logging.getLogger("taco.gateway")

Context = grpc.aio.ServicerContext[Any, Any]
Prompt = tuple[Sequence[int], tuple[PrefixPin, ...]]  # its tokens and prefix pins


async def start_inference_server(listen: str, gateway: Gateway) -> grpc.aio.Server:
    """Serves Inference, reflection and health on `listen` (`host:port` or `unix:/path`).

    The caller stops the returned server: `taco_common.grpc_stop.stop_server`.

    Raises:
        ConfigurationError: the address cannot be bound, or a TLS file cannot be read.
    """
    tls = gateway.config.tls
    interceptors: list[grpc.aio.ServerInterceptor] = [
        KeyInterceptor(gateway.keys),
        FieldLimitInterceptor(
            {
                f"/{SERVICE_NAME}/Chat": pb.ChatRequest,
                f"/{SERVICE_NAME}/Complete": pb.CompleteRequest,
                f"/{health.SERVICE_NAME}/Check": health_pb2.HealthCheckRequest,
                f"/{health.SERVICE_NAME}/Watch": health_pb2.HealthCheckRequest,
            }
        ),
    ]
    if tls is not None:
        allowed = {SERVICE_NAME: CALLERS, reflection.SERVICE_NAME: CALLERS}
        interceptors.insert(0, RoleInterceptor(allowed))
    server = grpc.aio.server(interceptors=interceptors, options=_SERVER_OPTIONS)
    add_InferenceServicer_to_server(InferenceService(gateway), server)
    health_pb2_grpc.add_HealthServicer_to_server(HealthService(gateway, SERVICE_NAME), server)
    services = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(services, server)
    try:
        add_port(server, listen, tls)
    except RuntimeError:
        raise ConfigurationError(f"cannot serve gRPC on {listen}: is it in use?") from None
    await server.start()
    if tls is None and not is_private(listen):
        logger.warning("gRPC on %s has no TLS: give certificates (--tls-ca-file, …)", listen)
    return server


class InferenceService(InferenceServicer):
    """Text in, text out, streamed."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Chat(  # noqa: N802 (the name in inference.proto)
        self, request: pb.ChatRequest, context: Context
    ) -> AsyncIterator[pb.TextReply]:
        async def prompt(cache: CacheFields) -> Prompt:
            engine = self._gateway.engine
            if len(request.messages) > MAX_MESSAGES:
                raise InvalidParameterError(
                    f"at most {MAX_MESSAGES} messages are allowed, got {len(request.messages)}",
                    "messages",
                )
            messages = [_message(message) for message in request.messages]
            token_ids = await engine.encode_chat(messages, must_fit=True)
            return token_ids, await engine.prefix_pins(messages, cache.breakpoints, token_ids)

        async for reply in self._answer(request, context, prompt, default_max_tokens=None):
            yield reply

    async def Complete(  # noqa: N802 (the name in inference.proto)
        self, request: pb.CompleteRequest, context: Context
    ) -> AsyncIterator[pb.TextReply]:
        async def prompt(cache: CacheFields) -> Prompt:
            match request.WhichOneof("prompt"):
                case "token_ids":
                    token_ids = await self._token_ids(request.token_ids)
                case "text":
                    token_ids = await self._gateway.engine.encode(request.text, must_fit=True)
                case _:
                    raise InvalidParameterError("Give text or token_ids.", "prompt")
            return token_ids, cache.pins_of_whole(len(token_ids))

        async for reply in self._answer(request, context, prompt, default_max_tokens=16):
            yield reply

    async def _token_ids(self, message: pb.TokenIds) -> Sequence[int]:
        if len(message.ids) > MAX_TOKEN_IDS:
            raise InvalidParameterError(
                f"at most {MAX_TOKEN_IDS} token ids are allowed, got {len(message.ids)}", "prompt"
            )
        return await self._gateway.engine.checked(message.ids)

    async def _answer(
        self,
        request: pb.ChatRequest | pb.CompleteRequest,
        context: Context,
        prompt: Callable[[CacheFields], Awaitable[Prompt]],
        *,
        default_max_tokens: int | None,
    ) -> AsyncIterator[pb.TextReply]:
        route = f"/taco.v1.Inference/{type(request).__name__.removesuffix('Request')}"
        log = RequestLog(f"grpc-{uuid.uuid4().hex}", GRPC_METHOD, route, time.perf_counter())
        log.status = CLIENT_CLOSED_REQUEST  # the status if the client disconnects
        try:
            async with aclosing(
                self._replies(request, context, prompt, default_max_tokens, log)
            ) as replies:
                async for reply in replies:
                    yield reply
            log.status = 200
        except (InvalidParameterError, ApiError, EngineError) as error:
            api_error = as_api_error(error)
            log.status, log.error = api_error.status, api_error.message
            await _abort(context, error)
        finally:
            log.write()

    async def _replies(
        self,
        request: pb.ChatRequest | pb.CompleteRequest,
        context: Context,
        prompt: Callable[[CacheFields], Awaitable[Prompt]],
        default_max_tokens: int | None,
        log: RequestLog,
    ) -> AsyncGenerator[pb.TextReply, None]:
        gateway = self._gateway
        gateway.check_accepting()
        key = gateway.keys.find(_bearer_key(context.invocation_metadata()))
        if key is None:  # it was revoked a moment ago
            raise ApiError(401, "The API key is not valid.")
        log.key = key.tenant.name
        gateway.check_model(request.model or None, key)
        given = _given(request.sampling)
        params = gateway.engine.sampling_params(given)
        if "max_tokens" not in given:
            params = params.with_updates(max_tokens=default_max_tokens)
        cache = cache_fields(request)
        token_ids, pins = await prompt(cache)
        rules = None
        if params.structured_outputs is not None and isinstance(request, pb.ChatRequest):
            # Behind the reasoning, as over HTTP.
            end_ids = gateway.engine.model_info().eos_token_ids
            wish = AnswerWish(has_constraint=True)
            rules = gateway.formats.rules(token_ids, wish, end_ids)
        parsing = None
        if gateway.formats.has_channels and isinstance(request, pb.ChatRequest):
            parsing = gateway.formats.options(
                token_ids, {}, max_calls=None, skip_special_tokens=params.skip_special_tokens
            )
        grammar = await gateway.engine.grammar(params, rules)
        request_id = log.request_id
        updates = gateway.engine.generate(
            await gateway.engine.checked(token_ids),
            gateway.engine_request(
                request, key, params, request_id, pins, grammar, context.time_remaining()
            ),
            parsing=parsing,
            clamp_max_tokens="max_tokens" not in given,
        )
        gateway.metrics.observe_params(len(token_ids), params.n, given.get("max_tokens"))
        gateway.log_request(request_id, token_ids, params)
        stats = RequestStats(gateway.metrics, log.arrival, params.n)
        log.stats, log.model = stats, request.model or gateway.model_names[0]
        num_running = params.n
        async with aclosing(updates):
            with stats:
                async for update in updates:
                    stats.add(update)
                    text = update.text if update.parsed is None else update.parsed.content
                    if update.finish_reason is not None:
                        num_running -= 1
                    elif not (text or update.logprobs):
                        continue
                    reply = pb.TextReply(
                        index=update.index,
                        text=text,
                        finish_reason=update.finish_reason or "",
                        logprobs=map(logprob_message, update.logprobs or ()),
                    )
                    if num_running == 0:
                        reply.usage.CopyFrom(_usage(stats))
                    yield reply


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Rejects calls without a valid API key, except health checks, when keys are configured."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._denial: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._deny
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        is_health_check = str(handler_call_details.method).startswith(f"/{health.SERVICE_NAME}/")
        key = _bearer_key(handler_call_details.invocation_metadata)
        if is_health_check or self._keys.find(key) is not None:
            return await continuation(handler_call_details)
        return self._denial

    async def _deny(self, request: object, context: Context) -> NoReturn:
        if not self._keys.is_loaded:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the API keys have not been loaded yet"
            )
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no valid API key was given")


def _bearer_key(metadata: Iterable[tuple[str, str | bytes]] | None) -> bytes | None:
    values = [value for name, value in metadata or () if name == "authorization"]
    return bearer_key([v if isinstance(v, bytes) else v.encode() for v in values])


async def _abort(
    context: Context, error: InvalidParameterError | ApiError | EngineError
) -> NoReturn:
    trailing: list[tuple[str, str]] = []
    match error:
        case InvalidParameterError():
            status, param = 400, error.param
        case ApiError():
            status, param = error.status, error.param
        case EngineError():
            status, param = error.code, error.param
            if error.retry_after:  # gRPC's own retries obey the second one
                trailing.append(("retry-after", str(error.retry_after)))
                trailing.append(("grpc-retry-pushback-ms", str(1000 * error.retry_after)))
            if error.reason:
                trailing.append(("code", error.reason))
    if param:
        trailing.append(("param", param))
    code = _STATUS_CODES.get(status, grpc.StatusCode.INTERNAL)
    if isinstance(error, EngineError) and error.reason == LICENSE_INVALID:
        code = (
            grpc.StatusCode.FAILED_PRECONDITION
        )  # gRPC's status for errors that a retry cannot fix
    await context.abort(code, str(error), tuple(trailing))


def _message(message: pb.ChatMessage) -> dict[str, str]:
    if message.role not in ROLES:
        raise InvalidParameterError(
            f"role must be one of {', '.join(sorted(ROLES))}, got {message.role[:50]!r}", "messages"
        )
    return {"role": message.role, "content": message.content}


def _given(sampling: pb.TextSampling) -> Mapping[str, Any]:
    """The fields that are set, by their names, which are those of `SamplingParams`."""
    given = _fields(sampling)
    if (constraint := given.get(PARAM)) is not None:
        given[PARAM] = StructuredOutputsParams.from_fields(_fields(constraint))
    if EXTRA_ARGS in given:
        given[EXTRA_ARGS] = extra_args_from_json(given[EXTRA_ARGS])
    if (early_stopping := given.get("early_stopping")) is not None:
        given["early_stopping"] = _EARLY_STOPPING.get(early_stopping, early_stopping)
    return given


def _fields(message: Message) -> dict[str, Any]:
    return {
        field.name: list(value) if field.is_repeated else value
        for field, value in message.ListFields()
    }


def _usage(stats: RequestStats) -> pb.Usage:
    usage = stats.usage()
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
    )
