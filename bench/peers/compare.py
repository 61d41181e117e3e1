"""Compares TACO with other engines on one machine: alternating runs, ratios with 95% intervals.

    python -m bench.peers.compare --directory /tmp/peers --ours taco --peer vllm openvino

`bench/peers/install.sh` fills the directory. Every engine is a process that is started and
warmed up before any timing. One round gives one pair with each peer. Use a quiet machine.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench import record
from bench.peers import workloads
from bench.peers.catalogue import NAMES, Catalogue
from bench.peers.checkpoint_size import kv_bytes_per_token, weight_bytes
from bench.peers.comparison import Verdict, record_of, verdicts
from bench.peers.engine_process import EngineError, EngineProcess, EngineSpec
from bench.peers.goals import HIGHER_IS_BETTER
from bench.peers.rounds import Values, peak_memory_bytes, start_seconds, take_turns, warm_engines
from bench.peers.workloads import MEMORY, Workload

ALONE = ("start", "memory")  # workloads that start their own engines


def main() -> None:
    args = _parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("compare: terminated"))
    catalogue = Catalogue(args.directory, args.model, args.threads)
    try:
        comparison = ComparisonRun(catalogue, args.ours, args.peer, args.pairs, args.save)
        for text in args.workload:
            if text in ALONE:
                comparison.run_alone(text)
        for prefix_cache in (False, True):
            chosen = [workloads.parse(text) for text in args.workload if text not in ALONE]
            chosen = [workload for workload in chosen if workload.prefix_cache == prefix_cache]
            if chosen:
                comparison.run(chosen, prefix_cache=prefix_cache)
    except (EngineError, ValueError) as error:
        sys.exit(f"compare: {error}")


class ComparisonRun:
    """Collects the record of one run; see `comparison` for its format.

    Prints and saves each workload as soon as it is done, because a run may take an hour.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        ours: list[str],
        peers: list[str],
        num_pairs: int,
        save_as: str | None,
    ) -> None:
        self._catalogue = catalogue
        self._save_as = save_as and record.name_by_isa(save_as)
        self._ours = ours
        self._names = [*ours, *peers]
        self._num_pairs = num_pairs
        self.figures: dict[str, Any] = {
            "model": catalogue.model,
            "weight_mb": round(weight_bytes(catalogue.checkpoint) / 1e6, 1),
            "threads": catalogue.threads,
            "pairs": num_pairs,
            "engines": {
                spec.name: {"weight_bits": spec.weight_bits}
                for spec in self._specs(prefix_cache=False)
            },
            "workloads": {},
        }

    def run(self, chosen: list[Workload], *, prefix_cache: bool) -> None:
        with warm_engines(self._specs(prefix_cache=prefix_cache), say) as engines:
            for engine in engines:
                self._describe(engine)
            for workload in chosen:
                values = take_turns(engines, workload, self._num_pairs, say)
                self._add(workload.name, workload.shape, values)

    def run_alone(self, name: str) -> None:
        specs = self._specs(prefix_cache=False)
        if name == "start":
            self._add(
                "start",
                "command to first token",
                {"seconds": start_seconds(specs, self._num_pairs, say)},
            )
            return
        checkpoint = self._catalogue.checkpoint
        num_tokens = sum(
            len(request.prompt) + request.num_output_tokens for request in MEMORY.requests()
        )
        expected = weight_bytes(checkpoint) + num_tokens * kv_bytes_per_token(checkpoint)
        peaks = peak_memory_bytes(specs, say)
        self._add(
            "memory",
            MEMORY.shape,
            {
                "above_mb": {
                    name: [(peak - expected) / 1e6 for peak in got] for name, got in peaks.items()
                }
            },
        )

    def _specs(self, *, prefix_cache: bool) -> list[EngineSpec]:
        return [self._catalogue.find(name, prefix_cache=prefix_cache) for name in self._names]

    def _describe(self, engine: EngineProcess) -> None:
        self.figures["engines"][engine.spec.name] |= {
            "version": engine.version,
            "idle_cpu_share": round(engine.idle_cpu_share, 3),
        }

    def _add(self, name: str, shape: str, values: dict[str, Values]) -> None:
        self.figures["workloads"][name] = {
            "shape": shape,
            "figures": {figure: record_of(got, self._ours) for figure, got in values.items()},
        }
        for verdict in verdicts(self.figures):
            if verdict.workload == name:
                print(_line(verdict), flush=True)
        if self._save_as:
            record.save(self._save_as, self.figures)


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _line(verdict: Verdict) -> str:
    text = f"{verdict.workload} {verdict.figure}: {verdict.ours} {verdict.our_median:.4g}"
    if verdict.theirs is not None:
        text += f", {verdict.theirs} {verdict.their_median:.4g}"
    if verdict.interval is not None:
        better = "higher" if verdict.figure in HIGHER_IS_BETTER else "lower"
        interval = verdict.interval
        text += f": ratio {interval.ratio:.3f} ({interval.low:.3f} to {interval.high:.3f}"
        text += f", {better} is better)"
    if verdict.outcome:
        text += f"; goal {verdict.goal}: {verdict.outcome}"
    return text


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default_directory = os.environ.get("PEERS_DIR", "/tmp/peers")
    parser.add_argument("--directory", type=Path, default=Path(default_directory))
    parser.add_argument("--model", default="qwen2-0.5b", help="a folder of DIRECTORY/models")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ours", nargs="+", choices=NAMES, default=["taco"])
    parser.add_argument("--peer", nargs="*", choices=NAMES, default=["vllm", "openvino"])
    parser.add_argument(
        "--workload",
        nargs="+",
        default=[*workloads.NAMED],
        help=f"names ({', '.join([*workloads.NAMED, *ALONE])}) or shapes such as 32x128/128, "
        "64x16-512/16-256, 32x512+32/32 (shared + own prompt tokens / output tokens)",
    )
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.ISA.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
