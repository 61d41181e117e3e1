"""Traces steps of the compiled CPU program: what each thread does, and where it waits.

    python -m bench.kernels.trace [--shape qwen2-0.5b] [--quantization int8]
        [--decode 1 32] [--prefill 1024] [--steps 3] [--out trace.json]

Writes a trace in Chrome's format: open it in chrome://tracing or https://ui.perfetto.dev. It shows
the ops of each thread with their layers, the parts of each op, and the waits at barriers. Prints
the time that threads lose at each kind of barrier. The model has random weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.kernels.barrier_waits import lost_times
from bench.kernels.chrome_trace import trace_document
from bench.kernels.traced_step import OpName, TracedStep, op_names, trace_steps
from bench.model_flags import add_kv_cache_dtype_flag, make_model_parser
from bench.worker.cpu_step import PROMPT_LEN, decode, join, load_worker, prefill
from taco_worker.worker import Worker

WARM_UP_STEPS = 2
MAX_LINES = 12


def main() -> None:
    parser = make_model_parser(__doc__)
    add_kv_cache_dtype_flag(parser)
    parser.add_argument(
        "--decode", type=int, nargs="*", default=[1], help="numbers of sequences (default 1)"
    )
    parser.add_argument(
        "--prefill",
        type=int,
        nargs="*",
        default=[],
        help="lengths of prompts in tokens (default none)",
    )
    parser.add_argument(
        "--steps", type=int, default=3, help="traced steps of each kind (default %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("trace.json"), help="the trace (default %(default)s)"
    )
    args = parser.parse_args()
    worker = load_worker(args.shape, args.quantization, args.kv_cache_dtype)
    names = op_names(worker._runner._model._weights.program.ops)  # type: ignore[attr-defined]
    steps_of = dict(traced(worker, args.decode, args.prefill, args.steps))
    for title, steps in steps_of.items():
        report(title, steps, names)
    args.out.write_text(json.dumps(trace_document(steps_of, names)))
    print(f"wrote {args.out}")


def traced(
    worker: Worker, decodes: list[int], prefills: list[int], num_steps: int
) -> Iterator[tuple[str, list[TracedStep]]]:
    """The steps of each kind, with its title. Steps before them are not traced."""
    for count in decodes:
        prefill(worker, count, PROMPT_LEN)
        steps = trace_steps(worker, [decode(count)] * (WARM_UP_STEPS + num_steps))
        yield f"decode, {count} sequences", steps[WARM_UP_STEPS:]
    for length in prefills:
        steps = []
        for _ in range(WARM_UP_STEPS + num_steps):
            worker.reset()
            steps += trace_steps(worker, [join(1, length)])
        yield f"prefill, {length} tokens", steps[WARM_UP_STEPS:]


def report(title: str, steps: list[TracedStep], names: list[OpName]) -> None:
    """Prints the kinds of barriers at which the most time is lost."""
    milliseconds = median(step.end - step.begin for step in steps) / 1e6
    lost = lost_times(steps, names)
    share = sum(one.share for one in lost)
    print(f"{title}: {milliseconds:.2f} ms, {share:.1%} of the threads' time lost at barriers")
    print(f"  {'barrier':40} {'count':>6} {'ms':>8} {'share':>7}")
    for one in lost[:MAX_LINES]:
        print(f"  {one.barrier:40} {one.count:6} {one.milliseconds:8.3f} {one.share:7.2%}")


if __name__ == "__main__":
    main()
