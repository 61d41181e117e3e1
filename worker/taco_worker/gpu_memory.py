"""How a GPU's memory is shared out: weights, what a step needs, and the KV cache from the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.sampling_columns import Choice, Penalties
from taco_worker.devices import gibibytes
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.transfers import Transfers

# What CUDA graphs keep beside the memory of eager steps, with room for growth.
GRAPH_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What is taken before there is a KV cache, in bytes.

    Attributes:
        total: the GPU's memory.
        utilization: the share of it that may be in use.
        weights: and all else that stays from step to step.
        activations: the most that a step takes beside them.
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
    largest_step: ModelInput,
    *,
    utilization: float,
    max_num_seqs: int,
    max_model_len: int,
    max_logprobs: int,
    block_size: int,
    captures_graphs: bool,
    conservative: bool,
) -> GpuMemory:
    """Run the largest step that there may be, over a KV cache of one block.

    It asks for everything that a request can, so that all that steps need is counted.

    Args:
        conservative: count what the driver says is gone after the step, torch's unused reserve
            included, instead of what torch says it needed: memory that kernels take behind torch's
            back is seen then.
    """
    device = transfers.device
    model.allocate_kv(1, block_size, max_model_len)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    weights = torch.cuda.memory_allocated(device)
    # Stands for the table of tokens, which comes later and stays.
    tokens = torch.zeros((max_num_seqs, max_model_len), dtype=torch.int32, device=device)
    with torch.inference_mode():
        run_asking_for_all(model, largest_step, tokens, max_logprobs)
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    needed = reserved if conservative else torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    return GpuMemory(
        total=total,
        utilization=utilization,
        weights=weights,
        activations=needed - weights,
        others=total - free - reserved,
        graphs=GRAPH_BYTES if captures_graphs else 0,
    )


def run_asking_for_all(
    model: StepModel, step: ModelInput, tokens: Tensor, max_logprobs: int
) -> None:
    """A step and everything that its sequences can ask for, so that what it needs is counted and no
    request waits for a kernel to be compiled; `tokens` int32 [max_num_seqs, max_model_len]."""
    hidden = model.forward(step)
    model.most_likely(hidden)
    logits = model.compute_logits(hidden)
    raw_logits = logits.clone()
    count = logits.shape[0]

    def column(value: float, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.full(count, value, dtype=dtype)

    model.sampling.penalize(
        logits,
        tokens,
        Penalties(
            rows=np.arange(count),
            sequences=np.arange(count, dtype=np.int32),
            starts=column(1, np.int32),
            lengths=column(2, np.int32),
            repetition=column(1.1, np.float32),
            presence=column(0.1, np.float32),
            frequency=column(0.1, np.float32),
            ngram_size=column(2, np.int32),
        ),
    )
    choice = Choice(
        temperature=column(1.0, np.float32),
        min_p=column(0.01, np.float32),
        top_k=column(50, np.int32),
        top_p=column(0.9, np.float32),
        uniforms=column(0.5, np.float64),
    )
    token_ids = model.sampling.choose(logits, choice)
    model.sampling.choose(logits, Choice.most_likely(count))
    num_top = column(min(max_logprobs, logits.shape[1]), np.int32)
    model.sampling.gather_logprobs(raw_logits, token_ids, num_top)


def largest_step(
    transfers: Transfers, *, max_num_seqs: int, num_tokens: int, max_model_len: int
) -> ModelInput:
    """As many tokens and sequences as a step may have, all over KV block 0.

    What is computed means nothing; what it takes does not depend on it.
    """
    num_seqs = min(max_num_seqs, num_tokens)
    lens = np.full(num_seqs, num_tokens // num_seqs, dtype=np.int32)
    lens[: num_tokens % num_seqs] += 1
    lens = np.minimum(lens, max_model_len)
    query_start = np.zeros(num_seqs + 1, dtype=np.int32)
    query_start[1:] = np.cumsum(lens)
    positions = np.concatenate([np.arange(each, dtype=np.int32) for each in lens])
    (token_ids,) = transfers.upload(np.zeros(positions.size, dtype=np.int32))
    return ModelInput(
        token_ids=token_ids,
        positions=positions,
        query_start=query_start,
        seq_lens=lens,
        # Entries for every block size that there is.
        block_tables=np.zeros((num_seqs, -(-int(lens.max()) // 8)), dtype=np.int32),
        output_rows=query_start[1:] - 1,
    )
