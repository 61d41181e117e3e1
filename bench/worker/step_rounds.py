"""Times worker steps of the checkout whose packages are on the path; `step_pairs` runs it.

The first round begins at once, and each further one with a line on standard input. A round writes a
line of JSON: milliseconds by step. It uses nothing of `bench` that older checkouts lack.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.peers.make_checkpoint import SHAPES, write_config
from bench.worker.cpu_step import MAX_MODEL_LEN, NUM_BLOCKS, decode, join
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.steps import StepPlan
from taco_worker.worker import Worker

PROMPT_LEN = 128
PREFILLS = (128, 512)
DECODES = (1, 8, 32)
# The best of these counts.
NUM_PREFILLS, NUM_DECODES = 2, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True, help="shape of the model")
    parser.add_argument("--quantization", help="type of the weights (default bfloat16)")
    parser.add_argument(
        "--kv-cache-dtype",
        default="auto",
        help="type of the KV cache, as in taco_llm serve (default %(default)s)",
    )
    args = parser.parse_args()
    worker = load_worker(args.shape, args.quantization, args.kv_cache_dtype)
    print(json.dumps(time_round(worker)), flush=True)
    for _ in sys.stdin:
        print(json.dumps(time_round(worker)), flush=True)


def load_worker(shape: str, quantization: str | None, kv_cache_dtype: str) -> Worker:
    """As that of `cpu_step`, which older checkouts lack."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), SHAPES[shape])
        model = ModelConfig(
            model=folder,
            load_format="dummy",
            quantization=quantization,
            max_model_len=MAX_MODEL_LEN,
        )
        config = WorkerConfig(
            model=model,
            kv_cache_dtype=kv_cache_dtype,
            num_blocks=NUM_BLOCKS,
            max_num_seqs=max(DECODES),
        )
        return Worker(config)


def time_round(worker: Worker) -> dict[str, float]:
    """Milliseconds of each step."""
    times = {}
    for prompt_len in PREFILLS:
        found = [time_prefill(worker, 1, prompt_len) for _ in range(NUM_PREFILLS)]
        times[f"prefill, {prompt_len} tokens"] = min(found)
    for count in DECODES:
        time_prefill(worker, count, PROMPT_LEN)
        found = [time_step(worker, decode(count)) for _ in range(NUM_DECODES)]
        times[f"decode, {count} x {PROMPT_LEN}"] = min(found)
    return times


def time_prefill(worker: Worker, count: int, prompt_len: int) -> float:
    worker.reset()
    return time_step(worker, join(count, prompt_len))


def time_step(worker: Worker, plan: StepPlan) -> float:
    begun = time.perf_counter()
    output = worker.execute(plan)
    milliseconds = 1e3 * (time.perf_counter() - begun)
    if output.error:
        raise RuntimeError(output.error)
    return milliseconds


if __name__ == "__main__":
    main()
