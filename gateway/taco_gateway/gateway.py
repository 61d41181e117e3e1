"""The state and the checks that all routes share: engine, tokenizer, API keys, metrics."""

import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from taco_gateway.api_errors import ApiError, model_not_found
from taco_gateway.api_keys.key_file import read_key_file
from taco_gateway.api_keys.key_ring import ApiKey, KeyRing, keys_from_flags
from taco_gateway.engine.engine_client import EngineClient
from taco_gateway.http.body_parser_pool import BodyPool
from taco_gateway.http.body_reader import read_json_bytes
from taco_gateway.http.sse_chunks import error_frame
from taco_gateway.http.sse_response import EventStream, until_disconnect
from taco_gateway.metrics import GatewayMetrics
from taco_gateway.protocol.generation_request import GenerationRequest
from taco_gateway.protocol.logprob_text import WrittenAnswer
from taco_gateway.protocol.logprobs import LogprobFormatter
from taco_gateway.protocol.request_schemas import RequestSchema
from taco_gateway.request_log import request_log_of
from taco_gateway.text.response.response_formats import ResponseFormats
from taco_gateway.text.text_engine import TextEngine
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_gateway.usage_and_latency import RequestStats
from taco_proto.config import GatewayConfig
from taco_proto.errors import InvalidParameterError
from taco_proto.grammars import Grammar
from taco_proto.requests import GenerateRequest, PrefixPin
from taco_proto.sampling_params import SamplingParams

logger = logging.getLogger("taco.gateway")

T = TypeVar("T")
_CHUNK_BYTES = 2**18


class EngineFields(Protocol):
    """Fields of every API's request that become fields of the engine's request."""

    @property
    def model(self) -> str | None: ...

    @property
    def priority(self) -> int: ...

    @property
    def cache_salt(self) -> str: ...

    @property
    def prompt_cache_key(self) -> str: ...


class Gateway:
    """One gateway: its components and the checks that all routes share.

    Args:
        keys: the API keys; None: those of the configuration.

    Attributes:
        keys: the API keys.
        formats: how the model writes tool calls and reasoning.
        created: when this process started, in seconds since the epoch.
        draining: new requests are rejected.
        openapi: the OpenAPI document, once a client has asked for it.
    """

    def __init__(
        self,
        config: GatewayConfig,
        client: EngineClient,
        tokenizer: Tokenizer | None,
        keys: KeyRing | None = None,
    ) -> None:
        self.config = config
        self.client = client
        self.tokenizer = tokenizer
        self.engine = TextEngine(
            client,
            tokenizer,
            chat_template=config.chat_template,
            processor_pattern=config.logits_processor_pattern,
        )
        self.formats = ResponseFormats(
            tokenizer,
            config.tool_call_parser if config.enable_auto_tool_choice else None,
            config.reasoning_parser,
            tool_plugin=config.tool_parser_plugin,
            reasoning_plugin=config.reasoning_parser_plugin,
        )
        self.bodies = BodyPool()
        self.metrics = GatewayMetrics(config.model.served_name, config.tls)
        self.keys = KeyRing() if keys is None else keys
        if keys is None:
            self.reload_keys()
        self.created = int(time.time())
        self.draining = False
        self.openapi: dict[str, Any] | None = None

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the base model; the first one is that of requests without a model."""
        return self.config.model.served_model_names or (self.config.model.served_name,)

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """The LoRA adapters that requests may name as their model."""
        info = self.client.model_info()
        return () if info is None else info.adapters

    @cached_property
    def system_fingerprint(self) -> str:
        """Changes when the same seed might give other tokens: with the version or the model."""
        model = self.config.model
        adapters = model.merge_lora, model.lora_modules
        weights = model.model, model.revision, model.dtype, model.quantization, *adapters
        parts = version("taco-llm"), *weights
        return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:10]}"

    @property
    def ready(self) -> bool:
        """Whether new requests are accepted."""
        info = self.client.model_info()
        return not self.draining and info is not None and info.ready and self.keys.is_loaded

    @property
    def license_problem(self) -> str:
        """Why requests are rejected without a license, for operators; empty: they are accepted."""
        info = self.client.model_info()
        return "" if info is None else info.license_problem

    def check_accepting(self) -> None:
        """Raises:
        ApiError: 503, this gateway is shutting down.
        EngineError: 503, no worker serves the model, or none has a license.
        """
        if self.draining:
            # Closing the connection sends the next try to another server.
            raise ApiError(503, "The server is shutting down.", headers={"connection": "close"})
        self.engine.model_info()

    def require_tokenizer(self) -> Tokenizer:
        """Raises:
        InvalidParameterError: the server runs without a tokenizer.
        """
        if self.tokenizer is None:
            raise InvalidParameterError(
                "This server runs without a tokenizer; send the prompt as token ids.", "prompt"
            )
        return self.tokenizer

    def check_chat_template(self, template: str | None) -> None:
        """Raises:
        InvalidParameterError: a request has its own template, and the server allows none.
        """
        if template is not None and not self.config.trust_request_chat_template:
            raise InvalidParameterError(
                "chat_template is not allowed by this server: start it with "
                "--trust-request-chat-template.",
                "chat_template",
                "unsupported_parameter",
            )

    def reload_keys(self) -> None:
        """Reads the key file again.

        Raises:
            ConfigurationError: the file is invalid; the former keys stay valid.
        """
        keys = keys_from_flags(self.config.api_keys)
        if self.config.api_key_file is not None:
            keys += read_key_file(self.config.api_key_file)
        self.keys.replace(keys)

    def check_model(self, name: str | None, key: ApiKey) -> None:
        """Checks the model of a request: the served one, which None is too, or an adapter.

        Raises:
            ApiError: 404, there is no such model; 403, the key may not use it.
            EngineError: 503, no worker has told the names of adapters.
        """
        if name is not None and name not in self.model_names:
            info = self.client.model_info()
            if info is None or not info.max_model_len:  # no worker has told its adapters yet
                info = self.engine.model_info()  # raises
            if name not in info.adapters:
                raise model_not_found(name)
        if not key.may_use(name or self.model_names[0]):
            message = "The API key may not use this model."
            raise ApiError(403, message, param="model", code="model_not_allowed")

    def _cache_salt(self, key: ApiKey, salt: str) -> str:
        """The salt of the prefix cache: requests with different salts share no cached prefix.

        Each key has its own salt, because the time to the first token would otherwise reveal what
        another key has asked.
        """
        if self.config.share_prefix_cache or not key.tenant.name:
            return salt
        return f"{key.tenant.name}\0{salt}"

    def _adapter(self, model: str | None) -> str:
        """The adapter that a checked model name means; empty: the base model.

        A worker could have an adapter with a name of the model, which then is the model's.
        """
        return model if model and model not in self.model_names else ""

    async def read_request(self, request: Request, schema: RequestSchema[T]) -> T:
        """Reads and validates the body of a request. A large body does not block the event loop.

        Raises:
            ApiError: the body is not an acceptable JSON object.
            InvalidParameterError, pydantic.ValidationError: the request is not valid.
        """
        limit = self.config
        raw = await read_json_bytes(
            request, max_bytes=limit.max_body_bytes, seconds=limit.body_timeout
        )
        return await self.bodies.parse(raw, schema)

    def close(self) -> None:
        """Ends the child processes for chat templates, tokenizers and request bodies."""
        self.engine.close()
        self.bodies.close()

    async def answer(self, request: Request, work: Coroutine[Any, Any, WrittenAnswer]) -> Response:
        """The response with the result of `work`, unless the client disconnects before."""
        answer = await until_disconnect(work, request.receive, self.metrics)
        first, *others = answer.pieces()
        if not others:
            return Response(first, media_type="application/json")
        length = sum(map(len, (first, *others)))
        return StreamingResponse(
            _chunks([first, *others]),
            media_type="application/json",
            headers={"content-length": str(length)},
        )

    def request_stats(
        self, request: Request, arrival: float, model: str | None, sequences_per_prompt: int
    ) -> RequestStats:
        """Creates the statistics of a request and adds them to its log line."""
        stats = RequestStats(self.metrics, arrival, sequences_per_prompt)
        log = request_log_of(request.scope)
        if log is not None:
            log.stats, log.model = stats, model or self.model_names[0]
        return stats

    def event_stream(
        self,
        frames: AsyncGenerator[bytes, None],
        error_frame: Callable[[ApiError], bytes] = error_frame,
    ) -> EventStream:
        """The response of a stream.

        Args:
            error_frame: makes the last frame of a stream that fails.
        """
        return EventStream(
            frames,
            ping_interval=self.config.ping_interval,
            stall_timeout=self.config.stall_timeout,
            metrics=self.metrics,
            error_frame=error_frame,
        )

    def logprob_formatter(self, request: GenerationRequest) -> LogprobFormatter:
        as_token_ids = request.return_tokens_as_token_ids
        if as_token_ids is None:
            as_token_ids = self.config.return_tokens_as_token_ids
        return LogprobFormatter(as_token_ids=as_token_ids)

    def engine_request(
        self,
        fields: EngineFields,
        key: ApiKey,
        params: SamplingParams,
        request_id: str,
        pins: tuple[PrefixPin, ...],
        grammar: Grammar | None,
        seconds_left: float | None = None,
    ) -> GenerateRequest:
        """Builds the engine's request from a client's request, without the prompt.

        Args:
            seconds_left: the client's own time limit; None: `queue_timeout` alone holds.
        """
        timeout = self.config.queue_timeout
        if seconds_left is not None:
            timeout = min(timeout, seconds_left)
        return GenerateRequest(
            request_id=request_id,
            sampling=params,
            priority=key.clamp_priority(fields.priority),
            deadline=time.monotonic() + timeout,
            tenant=key.tenant,
            adapter=self._adapter(fields.model),
            cache_salt=self._cache_salt(key, fields.cache_salt),
            pins=pins,
            prompt_cache_key=fields.prompt_cache_key,
            grammar=grammar,
        )

    def log_request(
        self, request_id: str, prompt: str | Sequence[int], params: SamplingParams
    ) -> None:
        if self.config.log_requests and logger.isEnabledFor(logging.INFO):
            shown = prompt[: self.config.max_log_len]
            if not isinstance(shown, str):
                shown = list(shown)
            logger.info("Request %s: prompt %r, %s", request_id, shown, params)


def key_of(request: Request) -> ApiKey:
    """The permissions of the API key that came with the request."""
    key = request.state.api_key
    assert isinstance(key, ApiKey)
    return key


def gateway_of(request: Request) -> Gateway:
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


async def _chunks(pieces: Sequence[bytes]) -> AsyncGenerator[memoryview, None]:
    for piece in pieces:
        for start in range(0, len(piece), _CHUNK_BYTES):
            yield memoryview(piece)[start : start + _CHUNK_BYTES]
