"""Last stage of a step with token masks, by number of allowed tokens: milliseconds.

    python -m bench.grammar.masked_logits [--quantization int8] [--rounds 15] [--save]

A model of Qwen2-0.5B's shape. "free" chooses the most likely of all tokens. "after" computes all
logits, masks them and chooses. "inside" chooses among the allowed tokens while it multiplies, and
skips blocks of the LM head that no row needs. The three take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from bench import record
from bench.peers.make_checkpoint import SHAPES, write_config
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.models.step_model import StepModel
from taco_worker.sampling.ops import SamplingMetadata
from taco_worker.sampling.token_masks import TokenMasks, mask_of
from taco_worker.worker import Worker

BATCH_SIZES = (1, 32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="qwen2-0.5b")
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), SHAPES[args.shape])
        model_config = ModelConfig(
            model=folder, load_format="dummy", quantization=args.quantization
        )
        config = WorkerConfig(model=model_config, num_blocks=16, num_threads=args.num_threads)
        model = Worker(config)._runner._model
    vocab_size = model.plan.vocab_size
    figures: dict[str, dict[str, float]] = {}
    print(f"{'rows':>5}{'allowed':>10}{'free':>10}{'after':>10}{'inside':>10}")
    for num_rows in BATCH_SIZES:
        for allowed in (1, 10, 100, 1000, vocab_size // 32, vocab_size // 8, vocab_size):
            found = measure(model, num_rows, allowed, args.rounds)
            figures[f"{num_rows} rows, {allowed} tokens"] = found
            columns = "".join(f"{value:10.2f}" for value in found.values())
            print(f"{num_rows:5}{allowed:10}{columns}", flush=True)
    if args.save:
        suffix = f"_{args.quantization}" if args.quantization else ""
        print(record.save(f"grammar_masked_logits{suffix}", figures))


def measure(model: StepModel, num_rows: int, allowed: int, rounds: int) -> dict[str, float]:
    """Each row allows other tokens, scattered over the vocabulary."""
    rng = np.random.default_rng(0)
    vocab_size = model.plan.vocab_size
    hidden = torch.from_numpy(
        rng.standard_normal((num_rows, model.plan.hidden_size)).astype(np.float32)
    )
    bits = [
        mask_of(rng.choice(vocab_size, allowed, replace=False).tolist(), vocab_size)
        for _ in range(num_rows)
    ]
    masks = TokenMasks(np.arange(num_rows), np.stack(bits), np.zeros(num_rows, dtype=np.bool_))
    greedy = SamplingMetadata.greedy(num_rows)

    def after() -> torch.Tensor:
        logits = model.compute_logits(hidden)
        model.sampling.mask(logits, masks)
        return model.sampling.sample(logits, greedy)

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "free": lambda: model.most_likely(hidden),
        "after": after,
        "inside": lambda: model.most_likely(hidden, masks),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(rounds + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if round_number:  # the first round warms caches
                times[name].append(1e3 * (time.perf_counter() - begun))
    return {name: round(median(values), 3) for name, values in times.items()}


if __name__ == "__main__":
    main()
