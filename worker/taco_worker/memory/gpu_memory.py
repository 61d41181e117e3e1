"""How a GPU's memory is shared out: weights, what a step needs, and the KV cache from the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from taco_worker.devices.byte_units import gibibytes
from taco_worker.devices.transfers import Transfers
from taco_worker.memory.profiling_steps import ProfilingSteps
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.heads.slot_kv import DrafterWithKV

# What CUDA graphs of decodes keep beside the memory of eager steps, with room for growth.
GRAPH_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What is taken before there is a KV cache, in bytes.

    Attributes:
        total: the GPU's memory.
        utilization: the share of it that may be in use.
        weights: and all else that stays from step to step, what a drafter loads among it.
        activations: the most that a step takes beside them, the making of drafts included.
        others: what torch does not count: CUDA's context, libraries, other processes.
        graphs: kept free for CUDA graphs.
    """

    total: int
    utilization: float
    weights: int
    activations: int
    others: int
    graphs: int

    @property
    def kv_cache(self) -> int:
        """Bytes for the KV cache; negative where they are missing."""
        taken = self.weights + self.activations + self.others + self.graphs
        return int(self.total * self.utilization) - taken

    def describe(self) -> str:
        """Where each GiB goes, in one line."""
        return (
            f"{gibibytes(self.total)} of GPU memory, of which {self.utilization:.0%} may be used: "
            f"weights {gibibytes(self.weights)}, activations {gibibytes(self.activations)}, CUDA "
            f"and other processes {gibibytes(self.others)}, CUDA graphs {gibibytes(self.graphs)}, "
            f"KV cache {gibibytes(max(0, self.kv_cache))}"
        )


def num_gpu_blocks(memory: GpuMemory, block_bytes: int, block_size: int) -> int:
    """How many KV blocks fit.

    Raises:
        ValueError: not one; the line says where the memory went.
    """
    num_blocks = memory.kv_cache // block_bytes
    if num_blocks < 1:
        raise ValueError(
            f"no GPU memory for the KV cache: {gibibytes(block_bytes - memory.kv_cache)} are "
            f"missing for one block of {block_size} tokens ({memory.describe()})"
        )
    return num_blocks


def measure_gpu_memory(
    model: StepModel,
    transfers: Transfers,
    trial: ProfilingSteps,
    *,
    utilization: float,
    block_size: int,
    captures_graphs: bool,
    conservative: bool,
) -> GpuMemory:
    """Run the largest steps that there may be.

    Args:
        conservative: count what the driver says is gone after the steps, torch's unused reserve
            included, instead of what torch says they needed: memory that kernels take behind
            torch's back is seen then.
    """
    device, verification = transfers.device, trial.verification
    model.allocate_kv(1, block_size, trial.max_model_len)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    weights = torch.cuda.memory_allocated(device)
    graphs = GRAPH_BYTES if captures_graphs else 0
    with torch.inference_mode():
        if captures_graphs and verification is not None:
            # All graphs share one pool, in which the largest of them leaves what it works with.
            graphs += _peak_bytes(device, lambda: model.forward(verification))
        activations = _peak_bytes(device, lambda: trial.run(model, device))
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    if conservative:
        activations = reserved - weights
    if isinstance(trial.drafter, DrafterWithKV):
        activations += trial.drafter.kv_bytes_beside
    torch.cuda.empty_cache()
    return GpuMemory(
        total=total,
        utilization=utilization,
        weights=weights,
        activations=activations,
        others=total - free - reserved,
        graphs=graphs,
    )


def _peak_bytes(device: torch.device, run: Callable[[], object]) -> int:
    """The most that it has beside what is there before."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
