"""Metrics of the gateway under vLLM's names, and the `/metrics` page with the scheduler's.

Observing a latency costs a bisection and two additions, cheap enough for every chunk of every
stream. Prometheus families are made when the page is scraped.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from taco_common.histogram import Histogram
from taco_common.http_protocol import ConnectionCounts
from taco_common.metrics import Families, exposition, process_registry
from taco_common.tls import Role
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
# As in vLLM: 1, 2, 5, 10, … up to the longest context.
_LENGTH_BUCKETS = tuple(float(digit * 10**exponent) for exponent in range(7) for digit in (1, 2, 5))
_COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


class GatewayMetrics(Collector):
    """Metrics of the gateway and of its process, in their own registry.

    Attributes:
        num_active: requests that are being generated.
    """

    def __init__(self, model_name: str, tls: TlsConfig | None = None) -> None:
        """`tls`: its certificate is exported; None: there is no certificate."""
        self._families = Families(model_name=model_name)
        self.time_to_first_token = Histogram(_FIRST_TOKEN_BUCKETS)
        self.inter_token_latency = Histogram(_TOKEN_BUCKETS)
        self.time_per_output_token = Histogram(_TOKEN_BUCKETS)
        self.e2e_latency = Histogram(_REQUEST_BUCKETS)
        self.prompt_tokens = Histogram(_LENGTH_BUCKETS)
        self.generation_tokens = Histogram(_LENGTH_BUCKETS)
        self.params_n = Histogram(_COUNT_BUCKETS)
        self.params_max_tokens = Histogram(_LENGTH_BUCKETS)
        self._finished: Counter[str] = Counter()
        self._responses: Counter[int] = Counter()
        self._disconnects = 0
        self.num_active = 0
        self.connections = ConnectionCounts()
        self._registry = process_registry(Role.GATEWAY, tls)
        self._registry.register(self)

    def observe_response(self, status: int) -> None:
        self._responses[status] += 1

    def observe_disconnect(self) -> None:
        self._disconnects += 1

    def observe_params(self, num_prompt_tokens: int, n: int, max_tokens: int | None) -> None:
        """Observes the parameters of an accepted request, once for each of its prompts.

        Args:
            max_tokens: of the client; None: it gave none.
        """
        self.prompt_tokens.observe(num_prompt_tokens)
        self.params_n.observe(n)
        if max_tokens is not None:
            self.params_max_tokens.observe(max_tokens)

    def sequence_finished(self, reason: str) -> None:
        self._finished[reason] += 1

    def collect(self) -> Iterable[Metric]:
        make = self._families
        yield make.histogram(
            "vllm:time_to_first_token_seconds",
            "Time from the request's arrival to its first token.",
            self.time_to_first_token,
        )
        # The second name is vLLM's older one.
        for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"):
            text = "Time between two tokens of one sequence."
            yield make.histogram(name, text, self.inter_token_latency)
        yield make.histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per output token after the first; one observation per sequence.",
            self.time_per_output_token,
        )
        yield make.histogram(
            "vllm:e2e_request_latency_seconds",
            "Time from the request's arrival to its last token.",
            self.e2e_latency,
        )
        yield make.histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", self.prompt_tokens
        )
        yield make.histogram(
            "vllm:request_generation_tokens",
            "Generated tokens of a sequence.",
            self.generation_tokens,
        )
        yield make.histogram("vllm:request_params_n", "Parameter n of a request.", self.params_n)
        yield make.histogram(
            "vllm:request_params_max_tokens",
            "Parameter max_tokens of the requests that set it.",
            self.params_max_tokens,
        )
        yield make.counters(
            "vllm:request_success",
            "Finished sequences by reason.",
            "finished_reason",
            {
                reason: self._finished[reason]
                for reason in sorted({"stop", "length", "abort", *self._finished})
            },
        )
        yield make.counters(
            "taco:http_responses",
            "HTTP responses by status.",
            "status",
            {str(status): count for status, count in sorted(self._responses.items())},
        )
        yield make.counter(
            "taco:client_disconnects",
            "Clients that disconnected before their answer was complete.",
            self._disconnects,
        )
        yield make.gauge(
            "taco:http_requests_active", "Requests that are being generated.", self.num_active
        )
        yield make.gauge(
            "taco:http_connections", "Open HTTP connections.", self.connections.num_open
        )
        yield make.counter(
            "taco:http_connections_rejected",
            "HTTP connections closed because --max-connections were open.",
            self.connections.num_rejected,
        )

    def add(self, collector: Collector) -> None:
        """Adds the metrics of another component of this gateway."""
        self._registry.register(collector)

    def exposition(self, scheduler: bytes = b"") -> bytes:
        """The gateway's metrics, then the scheduler's families that the gateway does not have."""
        own = exposition(self._registry)
        return b"".join([own, *_other_families(scheduler, known=set(_family_names(own)))])


def _family_names(exposition: bytes) -> Iterator[bytes]:
    for line in exposition.splitlines():
        if line.startswith(b"# TYPE "):
            yield line.split()[2]


def _other_families(exposition: bytes, known: set[bytes]) -> Iterator[bytes]:
    """Lines of the families that are not in `known`; a family starts with HELP or TYPE."""
    skip = False
    for line in exposition.splitlines(keepends=True):
        if line.startswith((b"# HELP ", b"# TYPE ")):
            skip = line.split()[2] in known
        if not skip:
            yield line
