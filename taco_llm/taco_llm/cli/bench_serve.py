"""`taco_llm bench serve`: load over HTTP against any OpenAI-compatible server."""

import argparse
import sys

from taco_llm.args.flags import add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.bench.serve_args import BenchServeArgs
from taco_llm.cli.options import Subparsers, add_config_argument, collect
from taco_proto.errors import ConfigurationError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        usage="taco_llm bench serve [--base-url URL] [options]",
        help="Put a server under load over HTTP and report latencies and throughput.",
        description="Sends requests to an OpenAI-compatible server and reports time to first "
        "token, time per output token, inter-token and end-to-end latency, and throughput.",
    )
    add_config_argument(parser)
    add_flags(parser, "requests, server, load and results", BenchServeArgs)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    args = BenchServeArgs(**given(BenchServeArgs, collect(parser, namespace)))
    try:
        from taco_llm.bench.serving import bench_serving
    except ImportError as error:
        raise ConfigurationError(
            f"{error.name} is not installed: pip install 'taco-llm[bench]'"
        ) from None
    try:
        return bench_serving(args, ["taco_llm", *sys.argv[1:]])
    except KeyboardInterrupt:
        print("Interrupted: the run that was under way is not reported.", file=sys.stderr)
        return INTERRUPTED
