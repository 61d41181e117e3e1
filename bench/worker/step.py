"""Host work of a decode step in a worker, without the model: microseconds per step.

    OMP_NUM_THREADS=1 python -m bench.worker.step [--save]

Batch and sampler are real. A stub returns the same logits at once instead of a model. A second
column is the step with a model of two small layers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench import record
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import IntArray, JoinedSequences, StepPlan
from taco_worker.models.step_model import ModelInput
from taco_worker.worker import Worker

VOCAB_SIZE = 8192
PROMPT_LEN = 40
NUM_STEPS = 80
BATCH_SIZES = (1, 64, 256)
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top_p, top_k": SamplingParams(temperature=0.8, top_p=0.9, top_k=40),
    "penalties": SamplingParams(presence_penalty=0.5, repetition_penalty=1.1),
    "logprobs": SamplingParams(temperature=0.0, logprobs=5),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "dtype": "float32",
}


class NoModel:
    """A stub model that returns the same logits at once."""

    def __init__(self, max_batch_size: int) -> None:
        self._hidden = torch.zeros(max_batch_size * PROMPT_LEN, 1)
        self._logits = torch.randn(
            max_batch_size, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)
        )

    def forward(self, inputs: ModelInput) -> Tensor:
        return self._hidden[: inputs.output_rows.size]

    def compute_logits(self, hidden: Tensor, masks: None = None) -> Tensor:
        return self._logits[: hidden.shape[0]].clone()

    def most_likely(self, hidden: Tensor, masks: None = None) -> Tensor:
        return self._logits[: hidden.shape[0]].argmax(-1)

    def forward_most_likely(
        self, inputs: ModelInput, *, gives_logprobs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        hidden = self.forward(inputs)
        if gives_logprobs:
            return self.most_likely_logprobs(hidden)
        return self.most_likely(hidden), None

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        best = self._logits[: hidden.shape[0]].log_softmax(-1).max(-1)
        return best.indices, best.values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as model_dir:
        (Path(model_dir) / "config.json").write_text(json.dumps(CONFIG))
        config = ModelConfig(model=model_dir, load_format="dummy")
        worker = Worker(WorkerConfig(model=config, num_threads=1))
    model = worker._runner._model
    no_model = NoModel(max(BATCH_SIZES))
    figures: dict[str, dict[str, int]] = {}
    print(f"{'sampling':14} {'batch':>5} {'host us':>8} {'with model':>10}")
    for name, params in SAMPLING.items():
        for batch_size in BATCH_SIZES:
            worker._runner._model = no_model  # type: ignore[assignment]
            host = median_step(worker, batch_size, params)
            worker._runner._model = model
            whole = median_step(worker, batch_size, params)
            print(f"{name:14} {batch_size:5} {host:8} {whole:10}")
            figures[f"{name}, {batch_size}"] = {"host": host, "with model": whole}
    if args.save:
        record.save("worker_step", {"microseconds_per_step": figures})


def median_step(worker: Worker, batch_size: int, params: SamplingParams) -> int:
    """Returns the median of a step in microseconds."""
    join(worker, batch_size, PROMPT_LEN, params)
    return round(1e6 * float(np.median(timed_steps(worker, batch_size, NUM_STEPS))))


def join(worker: Worker, batch_size: int, prompt_len: int, params: SamplingParams) -> float:
    """Returns the seconds of a step that prefills a batch with space for NUM_STEPS more tokens."""
    worker.reset()
    slots = np.arange(batch_size, dtype=np.int32)
    num_blocks = -(-(prompt_len + NUM_STEPS + 1) // worker.info.block_size)
    rng = np.random.default_rng(0)

    def each(value: int) -> IntArray:
        return np.full(batch_size, value, dtype=np.int32)

    joined = JoinedSequences(
        slots=slots,
        num_prompt_tokens=each(prompt_len),
        num_tokens=each(prompt_len),
        num_computed_tokens=each(0),
        token_ids=rng.integers(0, worker.info.vocab_size, batch_size * prompt_len, dtype=np.int32),
        num_blocks=each(num_blocks),
        block_ids=np.arange(batch_size * num_blocks, dtype=np.int32),
        sampling=tuple(params.with_updates(seed=seed) for seed in range(batch_size)),
    )
    plan = StepPlan(epoch=1, step_id=0, slots=slots, num_tokens=each(prompt_len), joined=joined)
    return timed(worker, plan)


def timed_steps(worker: Worker, batch_size: int, num_steps: int) -> list[float]:
    """Returns the seconds of each of the following decode steps."""
    slots, ones = np.arange(batch_size, dtype=np.int32), np.ones(batch_size, dtype=np.int32)
    return [
        timed(worker, StepPlan(epoch=1, step_id=step_id, slots=slots, num_tokens=ones))
        for step_id in range(1, num_steps + 1)
    ]


def timed(worker: Worker, plan: StepPlan) -> float:
    begun = time.perf_counter()
    output = worker.execute(plan)
    seconds = time.perf_counter() - begun
    if output.error:
        raise RuntimeError(output.error)
    return seconds


if __name__ == "__main__":
    main()
