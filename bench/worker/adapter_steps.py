"""Steps of a model with LoRA adapters on the CPU kernels, compared with those of the base model.

    python -m bench.worker.adapter_steps [--shape qwen2-0.5b] [--quantization int8] [--rounds 10]
        [--save]

The adapters change all linear layers. Each round runs a step of the base model without adapters,
then the same step with them: of sequences without an adapter, with one, and with four in turn. A
ratio above 1 is the cost of the adapters.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from bench import record
from bench.interval import ratio_interval
from bench.model_flags import make_model_parser
from bench.peers.make_adapters import write_adapter
from bench.peers.make_checkpoint import SHAPES, write_config
from bench.peers.workloads import ADAPTER_RANK, NUM_ADAPTERS
from bench.worker.cpu_step import MAX_MODEL_LEN, NUM_BLOCKS, step_inputs
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.models.config import load_hf_config
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.models.weight_sources import WeightSources
from taco_worker.worker import Worker

# Number of sequences, and of tokens of each.
STEPS = {
    "decode, 1 sequence": (1, 1),
    "decode, 8 sequences": (8, 1),
    "decode, 32 sequences": (32, 1),
    "prefill, 128 tokens": (1, 128),
    "prefill, 1024 tokens": (1, 1024),
}
# Adapters of sequences in turn; None: the step names none.
CASES: dict[str, tuple[int, ...] | None] = {
    "without an adapter": None,
    "one adapter": (0,),
    "four adapters": tuple(range(NUM_ADAPTERS)),
}


def main() -> None:
    parser = make_model_parser(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=10, help="pairs, at least 2 (default %(default)s)"
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds: an interval needs at least two pairs")
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), SHAPES[args.shape])
        base = load_model(Path(folder), args.quantization, 0)
        adapted = load_model(Path(folder), args.quantization, NUM_ADAPTERS)
    figures = {
        name: compare(name, base, adapted, *size, args.rounds) for name, size in STEPS.items()
    }
    if args.save:
        name = "adapter_steps" if args.shape == "qwen2-0.5b" else f"adapter_steps_{args.shape}"
        suffix = f"_{args.quantization}" if args.quantization else ""
        about = {"rank": ADAPTER_RANK, "adapters": NUM_ADAPTERS, "steps": figures}
        record.save_by_isa(f"{name}{suffix}", about)


def load_model(folder: Path, quantization: str | None, num_adapters: int) -> StepModel:
    """The model of a config with random weights and adapters."""
    sources = WeightSources(load_hf_config(folder).plan)
    modules = {
        name.removesuffix(".weight"): [size or 0 for size in fills[0].stored_shape]
        for name, fills in sources.fills.items()
        if name.endswith(".weight")
    }
    for index in range(num_adapters):
        write_adapter(modules, folder / str(index), seed=index)
    model = ModelConfig(
        model=str(folder),
        load_format="dummy",
        quantization=quantization,
        max_model_len=MAX_MODEL_LEN,
        lora_modules=tuple((str(i), str(folder / str(i))) for i in range(num_adapters)),
    )
    return Worker(WorkerConfig(model=model, num_blocks=NUM_BLOCKS, max_num_seqs=32))._runner._model


def compare(
    name: str, base: StepModel, adapted: StepModel, count: int, num_new: int, num_rounds: int
) -> dict[str, dict[str, float]]:
    """Prints and returns the median milliseconds of each case, and its ratio to the base model."""
    inputs = step_inputs(count, num_new)
    cases = {case: with_adapters(inputs, ids) for case, ids in CASES.items()}
    base_ms: list[float] = []
    milliseconds: dict[str, list[float]] = {case: [] for case in cases}
    for index in range(num_rounds + 1):
        times = {"": timed(base, inputs), **{c: timed(adapted, one) for c, one in cases.items()}}
        if index:  # the first round warms up
            base_ms.append(times.pop(""))
            for case, value in times.items():
                milliseconds[case].append(value)
    figures = {}
    for case, values in milliseconds.items():
        found = {
            "ms": statistics.median(values),
            "base_ms": statistics.median(base_ms),
            **asdict(ratio_interval(values, base_ms)),
        }
        figures[case] = {key: round(value, 3) for key, value in found.items()}
        shown = "  ".join(f"{key} {value}" for key, value in figures[case].items())
        print(f"{name:22} {case:20} {shown}", flush=True)
    return figures


def with_adapters(inputs: ModelInput, ids: tuple[int, ...] | None) -> ModelInput:
    """The inputs, with adapters of the sequences in turn."""
    if ids is None:
        return inputs
    query_lens = np.diff(inputs.query_start)
    of_sequences = np.resize(np.array(ids, dtype=np.int32), query_lens.size)
    return replace(inputs, adapter_ids=np.repeat(of_sequences, query_lens))


@torch.inference_mode()
def timed(model: StepModel, inputs: ModelInput) -> float:
    """The milliseconds of a step without its logits."""
    begun = time.perf_counter()
    model.forward(inputs)
    return 1e3 * (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
