"""Request log: one line for each finished request, successful or not."""

import json
import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from taco_common.logging import REQUEST, event

if TYPE_CHECKING:
    from taco_gateway.usage_and_latency import RequestStats

GRPC_METHOD = "GRPC"  # the method of requests of the Inference service

logger = logging.getLogger("taco.gateway.requests")

_MAX_ROUTE_CHARS = 200
_STATE_KEY = "request_log"


@dataclass(slots=True)
class RequestLog:
    """Content of the log line, collected while the request is served.

    Attributes:
        arrival: time of the request's arrival, on `perf_counter`'s clock.
        key: name of the API key's owner; empty: no key was needed or accepted.
        status: HTTP status, or that of the error that ended a stream; 0: no status was sent.
        stats: usage and latencies of a request that generates.
    """

    request_id: str
    method: str
    route: str
    arrival: float
    key: str = ""
    model: str = ""
    status: int = 0
    error: str = ""
    stats: "RequestStats | None" = None

    def write(self) -> None:
        """Logs the line: API requests at level info, probes and other requests at level debug."""
        is_api = self.method == GRPC_METHOD or (self.method == "POST" and "/v1/" in self.route)
        level = logging.INFO if is_api else logging.DEBUG
        if not logger.isEnabledFor(level):
            return
        data = self._data()
        parts = [f"{data['id']} {data['method']} {data['route']} {data['status']}"]
        parts += [f"{name}={data[name]}" for name in ("key", "model") if data[name]]
        if self.stats is not None:
            parts.append(f"tokens={data['prompt_tokens']}+{data['completion_tokens']}")
            parts.append(f"cached={data['cached_tokens']}")
        for name in ("queue", "ttft", "total"):
            if (seconds := data[f"{name}_seconds"]) is not None:
                parts.append(f"{name}={seconds:.3f}s")
        if data["finish_reasons"]:
            parts.append(f"finish={','.join(data['finish_reasons'])}")
        if self.error:
            parts.append(f"error={json.dumps(self.error)}")
        logger.log(level, "%s", " ".join(parts), extra=event(REQUEST, data))

    def _data(self) -> dict[str, Any]:
        stats = self.stats
        usage = None if stats is None else stats.usage()
        details = None if usage is None else usage.prompt_tokens_details
        return {
            "id": self.request_id,
            "method": self.method,
            "route": self.route[:_MAX_ROUTE_CHARS],
            "status": self.status,
            "key": self.key,
            "model": self.model,
            "prompt_tokens": 0 if usage is None else usage.prompt_tokens,
            "completion_tokens": 0 if usage is None else usage.completion_tokens,
            "cached_tokens": 0 if details is None else details.cached_tokens,
            "queue_seconds": None if stats is None else stats.queue_seconds,
            "ttft_seconds": None if stats is None else stats.first_token_seconds(),
            "total_seconds": perf_counter() - self.arrival,
            "finish_reasons": [] if stats is None else stats.finish_reasons,
            "error": self.error,
        }


def begin_request_log(scope: MutableMapping[str, Any], request_id: str) -> RequestLog:
    """Creates the log of a new HTTP request, and keeps it in the ASGI scope."""
    log = RequestLog(request_id, scope["method"], scope["path"], perf_counter())
    scope.setdefault("state", {})[_STATE_KEY] = log
    return log


def request_log_of(scope: MutableMapping[str, Any]) -> RequestLog | None:
    """The log of the request with this ASGI scope."""
    return scope.get("state", {}).get(_STATE_KEY)


def note_failure(scope: MutableMapping[str, Any], status: int, message: str) -> None:
    """Records that a request has failed, before or during its response."""
    log = request_log_of(scope)
    if log is not None:
        log.status, log.error = status, message
