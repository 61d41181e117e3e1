"""Arguments of `taco_llm bench serve`: server, load, reported metrics, result files."""

import argparse
import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taco_llm.args.flags import flag, json_object
from taco_llm.bench.output_files import SERVE_SUFFIXES, check_suffixes
from taco_llm.bench.workload_args import WorkloadArgs, check_at_least, progress_flag
from taco_proto.errors import ArgumentError

GOODPUT_METRICS = ("ttft", "tpot", "e2el")


def key_value(text: str) -> tuple[str, str]:
    """Parses KEY=VALUE, for argparse."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def latency_goal(text: str) -> tuple[str, float]:
    """Parses METRIC:MILLISECONDS, for argparse."""
    metric, _, limit = text.partition(":")
    try:
        milliseconds = float(limit)
    except ValueError:
        milliseconds = -1.0
    if metric not in GOODPUT_METRICS or not milliseconds > 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not METRIC:MILLISECONDS with a metric of {', '.join(GOODPUT_METRICS)}"
        )
    return metric, milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServeArgs(WorkloadArgs):
    """Arguments of the HTTP benchmark.

    Raises:
        ConfigurationError: a value is out of range.
    """

    host: str = flag("Host of the server.", default="127.0.0.1")
    port: int = flag("TCP port of the server.", default=8000, parse=int)
    base_url: str | None = flag(
        "URL of the server, http or https, instead of --host and --port.",
        default=None,
        metavar="URL",
    )
    endpoint: str = flag(
        "Path of the route. A path that ends in /chat/completions gets chat messages; other paths "
        "get prompts.",
        default="/v1/completions",
        metavar="PATH",
    )
    model: str | None = flag(
        "Model name in the requests. Default: the first model of /v1/models.",
        default=None,
        metavar="NAME",
    )
    tokenizer: str | None = flag(
        "Model whose tokenizer counts the tokens of the dataset and of the answers (retokenized), "
        "and makes text of random prompts for chat: a directory, a hub id or a bundled model.",
        default=None,
        metavar="MODEL",
    )
    api_key: str | None = flag(
        "API key of the server. Default: the environment variable OPENAI_API_KEY.",
        default=None,
        metavar="KEY",
    )
    header: tuple[tuple[str, str], ...] = flag(
        "Additional header of every request. Repeat the flag for several headers.",
        default=(),
        parse=key_value,
        several="append",
        metavar="NAME=VALUE",
    )
    extra_body: Mapping[str, Any] | None = flag(
        "Additional fields of every request's body as a JSON object, for example "
        "'{\"top_p\": 0.9}'. They override the benchmark's own fields; null removes a field.",
        default=None,
        parse=json_object,
        metavar="JSON",
    )
    request_rate: tuple[float, ...] = flag(
        "Requests per second; inf sends all requests at once. Several rates give one run each.",
        default=(float("inf"),),
        parse=float,
        several="extend",
        metavar="RATE",
    )
    burstiness: float = flag(
        "Shape of the gamma distribution of the time between requests: 1 is a Poisson process, a "
        "lower value sends bursts, a higher value sends more evenly.",
        default=1.0,
        parse=float,
        metavar="SHAPE",
    )
    max_concurrency: int | None = flag(
        "Maximum requests in flight. A request's latency counts from when it is sent, not from "
        "when it starts to wait. Default: no limit.",
        default=None,
        parse=int,
        metavar="REQUESTS",
    )
    ignore_eos: bool = flag(
        "Send ignore_eos, so that every answer has the full length. The server must support it.",
        default=False,
    )
    seed: int = flag("Seed of prompts, lengths and arrival times.", default=0, parse=int)
    num_warmups: int = flag(
        "Warm-up requests before the measurement. They must succeed, and share no prefix with the "
        "measured requests.",
        default=1,
        parse=int,
        metavar="REQUESTS",
    )
    request_timeout: float = flag(
        "Request timeout in seconds.", default=3600.0, parse=float, metavar="SECONDS"
    )
    metric_percentiles: tuple[float, ...] = flag(
        "Percentiles to report.",
        default=(99.0,),
        parse=float,
        several="extend",
        metavar="PERCENT",
    )
    goodput: tuple[tuple[str, float], ...] = flag(
        "Also report goodput: requests per second within all of these limits in milliseconds, such "
        "as ttft:500 tpot:50. e2el is the end-to-end latency.",
        default=(),
        parse=latency_goal,
        several="extend",
        metavar="METRIC:MS",
    )
    backend: str = flag(
        "Name of the server's engine in the report.", default="openai", metavar="NAME"
    )
    name: str | None = flag("Name of the run in the table. Default: the date.", default=None)
    metadata: tuple[tuple[str, str], ...] = flag(
        "Notes that are stored with the results. The keys prefix_cache, offload, hit and lookahead "
        "are columns of the table.",
        default=(),
        parse=key_value,
        several="extend",
        metavar="KEY=VALUE",
    )
    output_file: tuple[str, ...] = flag(
        "File for the results. Its suffix selects the format: .csv appends one row per run, .json "
        "writes one document with all results, .png plots latency against rate. Repeat the flag "
        "for several files.",
        default=(),
        several="append",
        metavar="FILE",
    )
    save_detailed: bool = flag(
        "Write the times of every request into the .json file.", default=False
    )
    progress: bool = progress_flag()

    def __post_init__(self) -> None:
        WorkloadArgs.__post_init__(self)
        check_at_least(self, 1, "max_concurrency")
        check_at_least(self, 0, "num_warmups", "seed")
        for name in ("burstiness", "request_timeout"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")
        if not all(rate > 0 for rate in self.request_rate):
            raise ArgumentError("request_rate must be positive, or inf")
        if not all(0 < percent < 100 for percent in self.metric_percentiles):
            raise ArgumentError("metric_percentiles must lie between 0 and 100")
        if not self.endpoint.startswith("/"):
            raise ArgumentError(f"endpoint must begin with /, got {self.endpoint!r}")
        check_suffixes(self.output_file, SERVE_SUFFIXES)

    @property
    def url(self) -> str:
        """The server's URL, without a trailing /v1 that `endpoint` repeats."""
        url = (self.base_url or f"http://{self.host}:{self.port}").rstrip("/")
        return url.removesuffix("/v1") if self.endpoint.startswith("/v1/") else url

    @property
    def is_chat(self) -> bool:
        return self.endpoint.rstrip("/").endswith("/chat/completions")

    @property
    def key(self) -> str | None:
        return self.api_key or os.environ.get("OPENAI_API_KEY") or None

    @property
    def run_name(self) -> str:
        return self.name or datetime.date.today().strftime("%Y%m%d")
