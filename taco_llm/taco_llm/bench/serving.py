"""Runs `taco_llm bench serve`: connects, warms up, runs each request rate, writes results."""

import asyncio
import math
import resource
import sys
from collections.abc import Sequence

import uvloop
from tqdm import tqdm

from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_llm.args.model_location import locate_model
from taco_llm.bench.http_exchange import Server
from taco_llm.bench.load import arrival_times, run_load
from taco_llm.bench.metrics import measure
from taco_llm.bench.openai_client import OpenAIClient, first_model
from taco_llm.bench.output_files import make_folders
from taco_llm.bench.report import error_report, serving_report
from taco_llm.bench.results import Run, append_csv, check_csv, csv_columns, csv_row, write_document
from taco_llm.bench.serve_args import BenchServeArgs
from taco_llm.bench.timeline import Timeline
from taco_llm.bench.workload import BenchRequest, Workload
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError


def bench_serving(args: BenchServeArgs, argv: Sequence[str]) -> int:
    """Runs the benchmark; returns 0, or 1 if a request failed.

    Args:
        argv: the command line, for the result files.

    Raises:
        ConfigurationError: the server, the dataset or an output file cannot be used.
    """
    make_folders(args.output_file)
    for path in _paths(args, ".csv"):
        check_csv(path, csv_columns(args))
    if _paths(args, ".png"):
        from taco_llm.bench.plot import check_matplotlib

        check_matplotlib()
    tokenizer = _load_tokenizer(args.tokenizer)
    workload = Workload(args, tokenizer, as_text=args.is_chat)
    server = Server(args.url)
    server.find()
    _allow_many_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        model, runs = runner.run(_run_all(args, server, workload, tokenizer))
    for path in _paths(args, ".json"):
        write_document(path, args, model, runs, argv)
    for path in _paths(args, ".png"):
        from taco_llm.bench.plot import write_plot

        write_plot(path, runs, f"{model}, {args.backend}")
    for path in args.output_file:
        print(f"Wrote {path}")
    return int(any(run.metrics.failed for run in runs))


async def _run_all(
    args: BenchServeArgs, server: Server, workload: Workload, tokenizer: Tokenizer | None
) -> tuple[str, list[Run]]:
    model = args.model or await first_model(server, args)
    client = OpenAIClient(server, args, model, tokenizer)
    runs = []
    for number, rate in enumerate(args.request_rate):
        # Each run gets new prompts, so that it finds none of them in the prefix cache.
        seed = args.seed + number
        num_warmups = args.num_warmups if number == 0 else 0
        requests = workload.requests(seed, num_warmups)
        await _warm_up(client, requests[:num_warmups])
        run = await _run(args, client, requests[num_warmups:], rate, seed, tokenizer)
        runs.append(run)
        print(serving_report(run.metrics, backend=args.backend, request_rate=rate))
        for line in error_report(run.metrics):
            print(line, file=sys.stderr)
        for path in _paths(args, ".csv"):
            append_csv(path, csv_row(args, run))
    return model, runs


async def _warm_up(client: OpenAIClient, requests: Sequence[BenchRequest]) -> None:
    """Sends warm-up requests one after another, since a cold server answers slowly.

    Raises:
        ConfigurationError: a request failed, so all would.
    """
    for request in requests:
        timeline = await client.send(request, 0.0)
        if timeline.error is not None:
            raise ConfigurationError(f"the warm-up request failed: {timeline.error}")


async def _run(
    args: BenchServeArgs,
    client: OpenAIClient,
    requests: Sequence[BenchRequest],
    rate: float,
    seed: int,
    tokenizer: Tokenizer | None,
) -> Run:
    arrivals = arrival_times(len(requests), rate, args.burstiness, seed)
    hidden = None if args.progress else True  # None shows it on a terminal only
    title = "Requests" if math.isinf(rate) else f"Requests at {rate:g}/s"
    with tqdm(total=len(requests), desc=title, disable=hidden) as progress:
        timelines, duration = await run_load(
            client.send, requests, arrivals, args.max_concurrency, progress
        )
    metrics = measure(
        timelines,
        duration,
        percentiles=args.metric_percentiles,
        goals=args.goodput,
        retokenized_tokens=_retokenized(timelines, tokenizer),
    )
    return Run(rate, metrics, timelines)


def _retokenized(timelines: Sequence[Timeline], tokenizer: Tokenizer | None) -> int | None:
    if tokenizer is None:
        return None
    texts = (timeline.text for timeline in timelines if timeline.error is None)
    return sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)


def _load_tokenizer(path: str | None) -> Tokenizer | None:
    if path is None:
        return None
    from taco_gateway.text.tokenizer.loading import load_tokenizer

    return load_tokenizer(ModelConfig(model=locate_model(path, "tokenizer")))


def _allow_many_connections() -> None:
    """Raises the limit of open files to the maximum, since each request in flight needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _paths(args: BenchServeArgs, suffix: str) -> list[str]:
    return [path for path in args.output_file if path.endswith(suffix)]
