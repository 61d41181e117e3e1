"""What every route works with."""

import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

from taco_gateway.api_errors import ApiError
from taco_gateway.api_keys.key_file import read_key_file
from taco_gateway.api_keys.key_ring import ApiKey, KeyRing, keys_from_flags
from taco_gateway.engine.engine_client import EngineClient
from taco_gateway.http.body_parser_pool import BodyPool
from taco_gateway.http.body_reader import read_json_bytes
from taco_gateway.http.sse_response import EventStream, until_disconnect
from taco_gateway.metrics import GatewayMetrics
from taco_gateway.protocol.generation_request import GenerationRequest
from taco_gateway.protocol.logprobs import LogprobFormatter
from taco_gateway.protocol.request_schemas import RequestSchema
from taco_gateway.request_log import request_log_of
from taco_gateway.request_stats import RequestStats
from taco_gateway.text.text_engine import TextEngine
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.config import GatewayConfig
from taco_proto.errors import InvalidParameterError
from taco_proto.requests import GenerateRequest, PrefixPin
from taco_proto.sampling_params import SamplingParams

logger = logging.getLogger("taco.gateway")

T = TypeVar("T")


class EngineFields(Protocol):
    """Fields that requests of every surface hand on to the engine."""

    @property
    def priority(self) -> int: ...

    @property
    def cache_salt(self) -> str: ...

    @property
    def prompt_cache_key(self) -> str: ...


class Gateway:
    """One gateway's parts and the checks that its routes share.

    Args:
        keys: who may use it; None: those of the configuration.

    Attributes:
        keys: who may use it.
        created: when this process began to serve, in seconds since the epoch.
        draining: no new requests are taken.
        openapi: the description of the routes, once somebody has asked for it.
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
        self.engine = TextEngine(client, tokenizer, chat_template=config.chat_template)
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
        """The names that clients may use; the first one stands in responses."""
        return self.config.model.served_model_names or (self.config.model.served_name,)

    @cached_property
    def system_fingerprint(self) -> str:
        """Changes when the same seed might give other tokens: with the version, or the model."""
        model = self.config.model
        parts = (version("taco-llm"), model.model, model.revision, model.dtype, model.quantization)
        return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:10]}"

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        info = self.client.model_info()
        return not self.draining and info is not None and info.ready and self.keys.is_loaded

    @property
    def license_problem(self) -> str:
        """Why requests are refused for want of a license, for operators; empty: they are not."""
        info = self.client.model_info()
        return "" if info is None else info.license_problem

    def check_accepting(self) -> None:
        """Raises:
        ApiError: 503, this gateway is going down.
        EngineError: 503, no worker serves the model, or may take new requests.
        """
        if self.draining:
            # The next try is to find another server.
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

    def reload_keys(self) -> None:
        """Reads the key file again.

        Raises:
            ConfigurationError: it makes no sense; the keys are those of before.
        """
        keys = keys_from_flags(self.config.api_keys)
        if self.config.api_key_file is not None:
            keys += read_key_file(self.config.api_key_file)
        self.keys.replace(keys)

    def check_model(self, name: str | None, key: ApiKey) -> None:
        """A request without a model is answered by the one that there is.

        Raises:
            ApiError: 404; 403, the key may not use it.
        """
        if name is not None and name not in self.model_names:
            raise model_not_found(name)
        if not key.may_use(name or self.model_names[0]):
            message = "The API key may not use this model."
            raise ApiError(403, message, param="model", code="model_not_allowed")

    def _cache_salt(self, key: ApiKey, salt: str) -> str:
        """Requests share cached prefixes only under the same salt: those of different keys do not,
        since the time to the first token would tell one what another has asked.
        """
        if self.config.share_prefix_cache or not key.tenant.name:
            return salt
        return f"{key.tenant.name}\0{salt}"

    async def read_request(self, request: Request, schema: RequestSchema[T]) -> T:
        """The validated body of a request; a large one costs the event loop no more than a small
        one.

        Raises:
            ApiError: the body is not an acceptable JSON object.
            InvalidParameterError, pydantic.ValidationError: it is no valid request.
        """
        limit = self.config
        raw = await read_json_bytes(
            request, max_bytes=limit.max_body_bytes, seconds=limit.body_timeout
        )
        return await self.bodies.parse(raw, schema)

    def close(self) -> None:
        """Ends the processes that render chat templates and parse bodies."""
        self.engine.close()
        self.bodies.close()

    async def answer(self, request: Request, work: Coroutine[Any, Any, BaseModel]) -> Response:
        """The response that `work` gives, unless the client goes away before."""
        model = await until_disconnect(work, request.receive, self.metrics)
        return Response(model.model_dump_json(), media_type="application/json")

    def request_stats(
        self, request: Request, arrival: float, model: str | None, sequences_per_prompt: int
    ) -> RequestStats:
        """New statistics of a request, which its log line shows."""
        stats = RequestStats(self.metrics, arrival, sequences_per_prompt)
        log = request_log_of(request.scope)
        if log is not None:
            log.stats, log.model = stats, model or self.model_names[0]
        return stats

    def event_stream(self, frames: AsyncGenerator[bytes, None]) -> EventStream:
        return EventStream(
            frames,
            ping_interval=self.config.ping_interval,
            stall_timeout=self.config.stall_timeout,
            metrics=self.metrics,
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
        seconds_left: float | None = None,
    ) -> GenerateRequest:
        """What the engine gets of a client's request, without its prompt.

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
            cache_salt=self._cache_salt(key, fields.cache_salt),
            pins=pins,
            prompt_cache_key=fields.prompt_cache_key,
        )

    def log_request(
        self, request_id: str, prompt: str | Sequence[int], params: SamplingParams
    ) -> None:
        if self.config.log_requests and logger.isEnabledFor(logging.INFO):
            shown = prompt[: self.config.max_log_len]
            if not isinstance(shown, str):
                shown = list(shown)
            logger.info("Request %s: prompt %r, %s", request_id, shown, params)


def model_not_found(name: str) -> ApiError:
    message = f"The model {name[:200]!r} does not exist."
    return ApiError(404, message, param="model", code="model_not_found")


def key_of(request: Request) -> ApiKey:
    """Whose request it is."""
    key = request.state.api_key
    assert isinstance(key, ApiKey)
    return key


def gateway_of(request: Request) -> Gateway:
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway
