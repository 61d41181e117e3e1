"""Time of a step on the CPU kernels by part: layers, last stage, host.

    python -m bench.worker.cpu_step [--shape qwen2-0.5b] [--quantization int8]
        [--kv-cache-dtype int8] [--rounds 5] [--save]

The model has random weights. The lower bound of a decode step is the time to read its matrices
once, at the bandwidth in --gb-per-s (bench.kernels.roofline measures it).
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from bench import record
from bench.model_flags import add_kv_cache_dtype_flag, make_model_parser
from bench.peers.make_checkpoint import SHAPES, write_config
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import IntArray, JoinedSequences, StepPlan
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.worker import Worker

MAX_MODEL_LEN = 2048
# Prompts have ids that every shape knows.
LOWEST_VOCAB_SIZE = 8192
NUM_BLOCKS = 1024
# Number of sequences, and the tokens of each prompt.
PROMPT_LEN = 128
DECODES = {"decode, 1 sequence": 1, "decode, 32 sequences": 32}
# Draft tokens of one sequence that a step verifies beside its own token.
VERIFICATIONS = {"decode and 4 drafts, 1 sequence": 4, "decode and 8 drafts, 1 sequence": 8}
PREFILLS = {"prefill, 128 tokens": 128, "prefill, 1024 tokens": 1024}


class TimedModel:
    """Forwards a model's calls and records the duration of each, in milliseconds."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self.layers = self.last_stage = 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, inputs: ModelInput) -> Tensor:
        begun = time.perf_counter()
        hidden = self._model.forward(inputs)
        self.layers = 1e3 * (time.perf_counter() - begun)
        return hidden

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        begun = time.perf_counter()
        found = self._model.most_likely_logprobs(hidden)
        self.last_stage = 1e3 * (time.perf_counter() - begun)
        return found

    def forward_most_likely(
        self, inputs: ModelInput, *, gives_logprobs: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Two calls, so that both are timed; all sequences ask for log probabilities."""
        assert gives_logprobs
        return self.most_likely_logprobs(self.forward(inputs))


def main() -> None:
    parser = make_model_parser(__doc__)
    add_kv_cache_dtype_flag(parser)
    parser.add_argument(
        "--rounds", type=int, default=5, help="measured steps of each kind (default %(default)s)"
    )
    parser.add_argument(
        "--gb-per-s",
        type=float,
        help="read bandwidth in GB/s, to print the lower bound (default: no bound)",
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    record.check_savable(parser, args, "kv_cache_dtype")
    worker = load_worker(args.shape, args.quantization, args.kv_cache_dtype)
    timed = TimedModel(worker._runner._model)
    worker._runner._model = timed  # type: ignore[assignment]
    figures: dict[str, dict[str, float]] = {}
    print(f"{'step, ms':32} {'whole':>8} {'layers':>8} {'last':>8} {'host':>8}")
    for name, count in DECODES.items():
        prefill(worker, count, PROMPT_LEN)
        figures[name] = report(
            name, [measure_decode(worker, timed, count) for _ in range(args.rounds)]
        )
    prefill(worker, 1, PROMPT_LEN)
    for name, num_drafts in VERIFICATIONS.items():
        inputs = step_inputs(1, 1 + num_drafts)
        figures[name] = report(name, [run_alone(timed, inputs) for _ in range(args.rounds)])
    for name, prompt_len in PREFILLS.items():
        parts = []
        for _ in range(args.rounds):
            worker.reset()
            parts.append(measure(worker, timed, join(1, prompt_len)))
        figures[name] = report(name, parts)
    num_bytes = matrix_bytes(timed._model.plan, args.quantization)
    figures_and_bound: dict[str, object] = {"milliseconds": figures, "matrix_bytes": num_bytes}
    if args.gb_per_s:
        bound = num_bytes / args.gb_per_s / 1e6
        whole = figures["decode, 1 sequence"]["whole"]
        print(f"lower bound, 1 sequence: {bound:.1f} ms, {bound / whole:.2f} of the time")
        figures_and_bound["gb_per_s"] = args.gb_per_s
    if args.save:
        name = "cpu_step" if args.shape == "qwen2-0.5b" else f"cpu_step_{args.shape}"
        suffix = f"_{args.quantization}" if args.quantization else ""
        record.save_by_isa(f"{name}{suffix}", figures_and_bound)


def load_worker(shape: str, quantization: str | None, kv_cache_dtype: str) -> Worker:
    """A worker with random weights in one of `SHAPES`."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), SHAPES[shape])
        model = ModelConfig(
            model=folder,
            load_format="dummy",
            quantization=quantization,
            max_model_len=MAX_MODEL_LEN,
        )
        return Worker(
            WorkerConfig(
                model=model,
                kv_cache_dtype=kv_cache_dtype,
                num_blocks=NUM_BLOCKS,
                max_num_seqs=32,
            )
        )


def matrix_bytes(plan: ModelPlan, quantization: str | None) -> int:
    """Bytes of the matrices that one token's step reads, each once; of experts, the chosen ones."""
    num_elements = sum(op.flops_per_token for op in (*plan.ops, *plan.logits)) // 2
    return num_elements * (1 if quantization else 2)


def report(name: str, parts: list[dict[str, float]]) -> dict[str, float]:
    found = {part: round(median(each[part] for each in parts), 3) for part in parts[0]}
    print(f"{name:32}", *(f"{value:8.2f}" for value in found.values()))
    return found


def measure(worker: Worker, timed: TimedModel, plan: StepPlan) -> dict[str, float]:
    """A step whose parts are calls of `timed`."""
    whole = execute(worker, plan)
    host = whole - timed.layers - timed.last_stage
    return {"whole": whole, "layers": timed.layers, "last": timed.last_stage, "host": host}


def measure_decode(worker: Worker, timed: TimedModel, count: int) -> dict[str, float]:
    """A decode step, which the worker runs in one call, and the same step of the model alone.

    The model alone takes two calls, so `host` may be slightly below zero.
    """
    whole = execute(worker, decode(count))
    found = run_alone(timed, step_inputs(count, 1))
    return {**found, "whole": whole, "host": whole - found["whole"]}


def execute(worker: Worker, plan: StepPlan) -> float:
    """Returns the milliseconds of a step."""
    begun = time.perf_counter()
    output = worker.execute(plan)
    milliseconds = 1e3 * (time.perf_counter() - begun)
    if output.error:
        raise RuntimeError(output.error)
    return milliseconds


def run_alone(timed: TimedModel, inputs: ModelInput) -> dict[str, float]:
    """Runs a step of the model without the worker around it."""
    timed.most_likely_logprobs(timed.forward(inputs))
    whole = timed.layers + timed.last_stage
    return {"whole": whole, "layers": timed.layers, "last": timed.last_stage, "host": 0.0}


def step_inputs(count: int, num_new: int) -> ModelInput:
    """The inputs of `count` sequences with as many tokens each after their prompts."""
    num_tokens, num_blocks = count * num_new, blocks_each(count)
    return ModelInput(
        token_ids=torch.arange(1000, 1000 + num_tokens, dtype=torch.int32),
        positions=np.tile(np.arange(PROMPT_LEN, PROMPT_LEN + num_new, dtype=np.int32), count),
        query_start=np.arange(0, num_tokens + 1, num_new, dtype=np.int32),
        seq_lens=np.full(count, PROMPT_LEN + num_new, dtype=np.int32),
        block_tables=np.arange(count * num_blocks, dtype=np.int32).reshape(count, num_blocks),
        output_rows=np.arange(num_tokens, dtype=np.int32),
    )


def prefill(worker: Worker, count: int, prompt_len: int) -> None:
    worker.reset()
    output = worker.execute(join(count, prompt_len))
    if output.error:
        raise RuntimeError(output.error)


def blocks_each(count: int) -> int:
    """Blocks of each of `count` sequences."""
    return min(NUM_BLOCKS // count, MAX_MODEL_LEN // 16)


def join(count: int, prompt_len: int) -> StepPlan:
    """Sequences that ask for log probabilities, as those of `LLM`."""
    blocks = blocks_each(count)
    rng = np.random.default_rng(0)

    def each(value: int) -> IntArray:
        return np.full(count, value, dtype=np.int32)

    joined = JoinedSequences(
        slots=np.arange(count, dtype=np.int32),
        num_prompt_tokens=each(prompt_len),
        num_tokens=each(prompt_len),
        num_computed_tokens=each(0),
        token_ids=rng.integers(0, LOWEST_VOCAB_SIZE, count * prompt_len, dtype=np.int32),
        num_blocks=each(blocks),
        block_ids=np.arange(count * blocks, dtype=np.int32),
        sampling=(SamplingParams(temperature=0.0, seed=0, logprobs=0),) * count,
    )
    return StepPlan(
        epoch=1, step_id=0, slots=joined.slots, num_tokens=each(prompt_len), joined=joined
    )


def decode(count: int) -> StepPlan:
    slots, ones = np.arange(count, dtype=np.int32), np.ones(count, dtype=np.int32)
    return StepPlan(epoch=1, step_id=1, slots=slots, num_tokens=ones)


if __name__ == "__main__":
    main()
