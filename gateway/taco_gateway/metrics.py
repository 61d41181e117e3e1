"""What the gateway measures, under the names that dashboards read, and the merged `/metrics`.

Latencies are kept as plain bucket counts: observing one is a bisection and two additions, cheap
enough for every chunk of every stream. They become Prometheus families only when somebody scrapes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from taco_common import histogram
from taco_common.metrics import exposition, process_registry
from taco_common.tls import Role
from taco_gateway.http.uvicorn_protocol import ConnectionCounts
from taco_proto.config import TlsConfig

_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_BUCKETS = (
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
# vLLM's: 1, 2, 5, 10, … up to the longest context.
_LENGTH_BUCKETS = tuple(float(digit * 10**exponent) for exponent in range(7) for digit in (1, 2, 5))
_COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


class Histogram(histogram.Histogram):
    """One that knows its name."""

    __slots__ = ("_documentation", "_name")

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        super().__init__(bounds)
        self._name = name
        self._documentation = documentation

    def collect(self, model_name: str, *, name: str = "") -> Metric:
        """`name`: another one than its own."""
        family = HistogramMetricFamily(
            name or self._name, self._documentation, labels=("model_name",)
        )
        family.add_metric((model_name,), self.buckets(), self.sum)
        return family


class GatewayMetrics(Collector):
    """The gateway's own numbers and those of its process, in a registry of their own."""

    def __init__(self, model_name: str, tls: TlsConfig | None = None) -> None:
        """`tls`: whose certificate is shown; None: there is none."""
        self._model_name = model_name
        self.time_to_first_token = Histogram(
            "vllm:time_to_first_token_seconds",
            "Time from the request's arrival to its first token.",
            _FIRST_TOKEN_BUCKETS,
        )
        self.inter_token_latency = Histogram(
            "vllm:inter_token_latency_seconds",
            "Time between two tokens of one sequence.",
            _TOKEN_BUCKETS,
        )
        self.time_per_output_token = Histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per output token after the first, one observation a sequence.",
            _TOKEN_BUCKETS,
        )
        self.e2e_latency = Histogram(
            "vllm:e2e_request_latency_seconds",
            "Time from the request's arrival to its last token.",
            _REQUEST_BUCKETS,
        )
        self.prompt_tokens = Histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", _LENGTH_BUCKETS
        )
        self.generation_tokens = Histogram(
            "vllm:request_generation_tokens", "Generated tokens of a sequence.", _LENGTH_BUCKETS
        )
        self.params_n = Histogram(
            "vllm:request_params_n", "The parameter n of a request.", _COUNT_BUCKETS
        )
        self.params_max_tokens = Histogram(
            "vllm:request_params_max_tokens",
            "The parameter max_tokens of a request that gives it.",
            _LENGTH_BUCKETS,
        )
        self._finished: Counter[str] = Counter()
        self._responses: Counter[int] = Counter()
        self._disconnects = 0
        self._active = 0
        self.connections = ConnectionCounts()
        self._registry = process_registry(Role.GATEWAY, tls)
        self._registry.register(self)

    @property
    def num_active(self) -> int:
        """Requests that are being generated."""
        return self._active

    def observe_response(self, status: int) -> None:
        self._responses[status] += 1

    def observe_disconnect(self) -> None:
        self._disconnects += 1

    def observe_params(self, num_prompt_tokens: int, n: int, max_tokens: int | None) -> None:
        """A request that was accepted, one for each of its prompts.

        Args:
            max_tokens: as the client gave it.
        """
        self.prompt_tokens.observe(num_prompt_tokens)
        self.params_n.observe(n)
        if max_tokens is not None:
            self.params_max_tokens.observe(max_tokens)

    def track_request(self, arrival: float) -> "RequestTimer":
        """`arrival`: when the request came, on `perf_counter`'s clock. The timer must be closed."""
        self._active += 1
        return RequestTimer(self, arrival)

    def request_ended(self) -> None:
        self._active -= 1

    def sequence_finished(self, reason: str) -> None:
        self._finished[reason] += 1

    def collect(self) -> Iterable[Metric]:
        label = self._model_name
        yield self.time_to_first_token.collect(label)
        yield self.inter_token_latency.collect(label)
        # The same under its older name.
        yield self.inter_token_latency.collect(label, name="vllm:time_per_output_token_seconds")
        yield self.time_per_output_token.collect(label)
        yield self.e2e_latency.collect(label)
        yield self.prompt_tokens.collect(label)
        yield self.generation_tokens.collect(label)
        yield self.params_n.collect(label)
        yield self.params_max_tokens.collect(label)
        success = CounterMetricFamily(
            "vllm:request_success",
            "Sequences that ended, by reason.",
            labels=("model_name", "finished_reason"),
        )
        for reason in sorted({"stop", "length", "abort", *self._finished}):
            success.add_metric((label, reason), self._finished[reason])
        yield success
        responses = CounterMetricFamily(
            "taco:http_responses", "HTTP responses by status.", labels=("model_name", "status")
        )
        for status, count in sorted(self._responses.items()):
            responses.add_metric((label, str(status)), count)
        yield responses
        disconnects = CounterMetricFamily(
            "taco:client_disconnects",
            "Clients that went away before their answer was complete.",
            labels=("model_name",),
        )
        disconnects.add_metric((label,), self._disconnects)
        yield disconnects
        active = GaugeMetricFamily(
            "taco:http_requests_active", "Requests being generated.", labels=("model_name",)
        )
        active.add_metric((label,), self._active)
        yield active
        connections = GaugeMetricFamily(
            "taco:http_connections", "Open HTTP connections.", labels=("model_name",)
        )
        connections.add_metric((label,), self.connections.num_open)
        yield connections
        rejected = CounterMetricFamily(
            "taco:http_connections_rejected",
            "HTTP connections that were closed because --max-connections were open.",
            labels=("model_name",),
        )
        rejected.add_metric((label,), self.connections.num_rejected)
        yield rejected

    def add(self, collector: Collector) -> None:
        """Shows the numbers of another part of this gateway, too."""
        self._registry.register(collector)

    def exposition(self, scheduler: bytes = b"") -> bytes:
        """Own metrics, then those families of the scheduler's that are not among them."""
        own = exposition(self._registry)
        return b"".join([own, *_other_families(scheduler, known=set(_family_names(own)))])


class RequestTimer:
    """Latencies of one request and each of its sequences. `close` ends it, once.

    Attributes:
        queue_seconds: from the scheduler's receipt to the first step; None: unknown.
        finish_reasons: of the sequences that have ended.
    """

    def __init__(self, metrics: GatewayMetrics, arrival: float) -> None:
        self._metrics = metrics
        self._arrival = self._last = arrival
        self._sequences: dict[int, _SequenceTimes] = {}
        self._closed = False
        self.queue_seconds: float | None = None
        self.finish_reasons: list[str] = []

    def update(self, index: int, num_tokens: int, finish_reason: str | None) -> None:
        """News of sequence `index`: tokens that came together, and why it ended if it has."""
        now = self._last = perf_counter()
        times = self._sequences.get(index)
        if times is None:
            if not self._sequences:
                self._metrics.time_to_first_token.observe(now - self._arrival)
            self._sequences[index] = times = _SequenceTimes(now, now, num_tokens)
        elif num_tokens:
            self._metrics.inter_token_latency.observe((now - times.last) / num_tokens, num_tokens)
            times.last = now
            times.num_tokens += num_tokens
        if finish_reason is not None:
            self._metrics.sequence_finished(finish_reason)
            self._metrics.generation_tokens.observe(times.num_tokens)
            self.finish_reasons.append(finish_reason)
            if times.num_tokens > 1:
                per_token = (times.last - times.first) / (times.num_tokens - 1)
                self._metrics.time_per_output_token.observe(per_token)

    def first_token_seconds(self, since: float) -> float | None:
        """From `since` to the first token; None: there was none."""
        first = next(iter(self._sequences.values()), None)
        return None if first is None else first.first - since

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._metrics.request_ended()
            if self._sequences:
                self._metrics.e2e_latency.observe(self._last - self._arrival)


@dataclass(slots=True)
class _SequenceTimes:
    first: float
    last: float
    num_tokens: int


def _family_names(exposition: bytes) -> Iterator[bytes]:
    for line in exposition.splitlines():
        if line.startswith(b"# TYPE "):
            yield line.split()[2]


def _other_families(exposition: bytes, known: set[bytes]) -> Iterator[bytes]:
    """Lines of the families that are not `known`; a family begins at its HELP or TYPE line."""
    skip = False
    for line in exposition.splitlines(keepends=True):
        if line.startswith((b"# HELP ", b"# TYPE ")):
            skip = line.split()[2] in known
        if not skip:
            yield line
