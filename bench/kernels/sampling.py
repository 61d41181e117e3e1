"""Token sampling on the CPU kernels, with torch operations, and by sorting the vocabulary.

    python -m bench.kernels.sampling [--rounds N] [--save]

Engines without selection kernels sort for top-k and top-p. Each round times the three one after
the other, with one thread. A figure is the median of the rounds in milliseconds of CPU time per
step, so other load hardly counts.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bench.record import save_by_isa
from taco_kernels.library import CpuKernels, load
from taco_kernels.sampling_metadata import SamplingMetadata
from taco_worker.sampling.cpu_ops import CpuSampling
from taco_worker.sampling.torch_ops import TorchSampling

VOCAB_SIZE = 151_936
NUM_ROWS = (1, 32, 64)
# temperature, top_k, top_p
SETTINGS = {
    "argmax": (0.0, 0, 1.0),
    "no filter": (1.0, 0, 1.0),
    "top_p 0.9": (1.0, 0, 0.9),
    "top_k 50": (1.0, 50, 1.0),
    "top_k 50, top_p 0.9": (1.0, 50, 0.9),
}


def zipf_logits(num_rows: int) -> Tensor:
    """Logits like a language model's: the weight of rank r falls with r to the power 1.5."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.stack([torch.randperm(VOCAB_SIZE, generator=generator) for _ in range(num_rows)])
    return -1.5 * torch.log(ranks + 1.0)


def normal_logits(num_rows: int) -> Tensor:
    """Logits of random weights: nearly all tokens count, so no kernel can skip any."""
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


LOGITS = {"zipf": zipf_logits, "normal": normal_logits}


def make_metadata(num_rows: int, setting: tuple[float, int, float]) -> SamplingMetadata:
    temperature, top_k, top_p = setting
    return SamplingMetadata(
        temperature=np.full(num_rows, temperature, np.float32),
        min_p=np.zeros(num_rows, np.float32),
        top_k=np.full(num_rows, top_k, np.int32),
        top_p=np.full(num_rows, top_p, np.float32),
        uniforms=np.random.default_rng(0).random(num_rows),
    )


def sort_and_draw(logits: Tensor, setting: tuple[float, int, float]) -> Tensor:
    """Samples the common way: sort, mask, softmax, exponential race."""
    temperature, top_k, top_p = setting
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k or top_p < 1:
        logits, order = logits.sort(dim=-1, descending=False)
        if top_k:
            logits.masked_fill_(logits < logits[:, -top_k, None], -torch.inf)
        if top_p < 1:
            is_out = logits.softmax(-1).cumsum(-1) <= 1 - top_p
            is_out[:, -1] = False
            logits.masked_fill_(is_out, -torch.inf)
        logits = torch.empty_like(logits).scatter_(-1, order, logits)
    probs = logits.softmax(-1)
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(-1)


def measure(
    kernels: CpuKernels, logits: Tensor, setting: tuple[float, int, float], rounds: int
) -> dict[str, float]:
    metadata = make_metadata(logits.shape[0], setting)
    ways: dict[str, Callable[[], Tensor]] = {
        "kernels": lambda: CpuSampling(kernels).sample(logits, metadata),
        "torch": lambda: TorchSampling().sample(logits, metadata),
        "sort": lambda: sort_and_draw(logits, setting),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(rounds + 1):
        for name, way in ways.items():
            start = time.thread_time()
            way()
            if round_number:  # the first round warms caches and allocators
                times[name].append(1000 * (time.thread_time() - start))
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of each setting (default %(default)s)"
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels = load(1)

    figures: dict[str, object] = {"isa": kernels.isa}
    print(f"{kernels.isa}, {VOCAB_SIZE:,} tokens; ms of one thread a step")
    print(f"{'logits':8}{'rows':>5}  {'setting':20}{'kernels':>10}{'torch':>10}{'sort':>10}")
    for shape, make_logits in LOGITS.items():
        for num_rows in NUM_ROWS:
            logits = make_logits(num_rows)
            for name, setting in SETTINGS.items():
                found = measure(kernels, logits, setting, arguments.rounds)
                figures[f"{shape}, {num_rows} rows, {name}"] = found
                columns = "".join(f"{value:10.3f}" for value in found.values())
                print(f"{shape:8}{num_rows:5}  {name:20}{columns}", flush=True)
    if arguments.save:
        print(save_by_isa("cpu_sampling", figures))


if __name__ == "__main__":
    main()
