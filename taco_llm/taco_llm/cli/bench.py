"""`taco_llm bench`: measures a server over HTTP, or the engine in this process."""

from taco_llm.cli import bench_offline, bench_serve
from taco_llm.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="Measure a server over HTTP, or the engine in this process.",
        description="Measures a server over HTTP (serve), or the engine in this process "
        "(throughput, latency).",
    )
    commands = parser.add_subparsers(dest="bench_command", metavar="BENCHMARK", required=True)
    bench_serve.add_parser(commands)
    bench_offline.add_parsers(commands)
