"""Profiles a GPU's memory: weights, activations and CUDA graphs; the KV cache gets the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from taco_worker.devices.byte_units import gibibytes
from taco_worker.devices.transfers import Transfers
from taco_worker.memory.profiling_steps import ProfilingSteps
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.heads.slot_blocks import DrafterWithKV

# Reserved for CUDA graphs of decode steps, on top of the activations of eager steps.
GRAPH_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """GPU memory in use before the KV cache is allocated, in bytes.

    Attributes:
        total: the GPU's memory.
        utilization: the fraction of it that may be used (`gpu_memory_utilization`).
        weights: the weights and other permanent tensors, those of a drafter included.
        activations: the additional peak of a step, drafting included.
        others: memory that torch does not count: CUDA's context, libraries, other processes.
        graphs: reserved for CUDA graphs.
    """

    total: int
    utilization: float
    weights: int
    activations: int
    others: int
    graphs: int

    @property
    def kv_cache(self) -> int:
        """Bytes left for the KV cache; negative if memory is missing."""
        taken = self.weights + self.activations + self.others + self.graphs
        return int(self.total * self.utilization) - taken

    def describe(self) -> str:
        """The share of each use, in one line for the log and errors."""
        return (
            f"{gibibytes(self.total)} of GPU memory, of which {self.utilization:.0%} may be used: "
            f"weights {gibibytes(self.weights)}, activations {gibibytes(self.activations)}, CUDA "
            f"and other processes {gibibytes(self.others)}, CUDA graphs {gibibytes(self.graphs)}, "
            f"KV cache {gibibytes(max(0, self.kv_cache))}"
        )


def num_gpu_blocks(memory: GpuMemory, block_bytes: int, block_size: int) -> int:
    """The number of KV blocks that fit.

    Raises:
        ValueError: not one fits; the message lists the uses of the memory.
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
    profiling_steps: ProfilingSteps,
    *,
    utilization: float,
    block_size: int,
    captures_graphs: bool,
    conservative: bool,
) -> GpuMemory:
    """Run the largest possible steps and measure their memory.

    Args:
        conservative: count the memory that the driver reports as used after the steps, with
            torch's unused reserve, instead of torch's peak. It includes memory that kernels
            allocate without torch.
    """
    device, verification = transfers.device, profiling_steps.verification
    model.allocate_kv(1, block_size, profiling_steps.max_model_len)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    weights = torch.cuda.memory_allocated(device)
    graphs = GRAPH_BYTES if captures_graphs else 0
    with torch.inference_mode():
        if captures_graphs and verification is not None:
            # All graphs share one pool, which keeps the working memory of the largest graph.
            graphs += _peak_bytes(device, lambda: model.forward(verification))
        activations = _peak_bytes(device, lambda: profiling_steps.run(model, device))
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    if conservative:
        activations = reserved - weights
    if isinstance(profiling_steps.drafter, DrafterWithKV):
        activations += profiling_steps.drafter.fixed_kv_bytes
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
    """Peak memory that `run` allocates on top of what was allocated before."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
