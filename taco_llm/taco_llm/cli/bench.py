"""`taco_llm bench …`: how fast a server or the engine is."""

from taco_llm.cli import bench_latency, bench_serve, bench_throughput
from taco_llm.cli.options import Subparsers

_COMMANDS = (bench_serve, bench_throughput, bench_latency)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="Measure a server over HTTP, or the engine in this process.",
        description="Measures how fast a server answers over HTTP (serve), or how fast the engine "
        "is in this process (throughput, latency).",
    )
    commands = parser.add_subparsers(dest="bench_command", metavar="BENCHMARK", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
