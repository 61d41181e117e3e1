"""Computes the number of KV blocks and the longest sequence (`max_model_len`) that they allow."""

from __future__ import annotations

import logging

import torch

from taco_proto.config import WorkerConfig
from taco_worker.devices.byte_units import mebibytes
from taco_worker.devices.cpu_memory import available_cpu_memory
from taco_worker.devices.transfers import Transfers
from taco_worker.memory.gpu_memory import measure_gpu_memory, num_gpu_blocks
from taco_worker.memory.profiling_steps import ProfilingSteps, largest_step, largest_verification
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.heads.slot_blocks import DrafterWithKV
from taco_worker.speculation.speculator_factory import make_typical, max_draft_tokens

logger = logging.getLogger("taco.worker")

# The rest is for activations, the page cache of the mapped weights, and other processes.
_CPU_MEMORY_SHARE = 0.5


def resolve_max_model_len(config: WorkerConfig, model: StepModel) -> int:
    """The longest sequence in tokens that the model and the configuration allow.

    Raises:
        ValueError: the configured length exceeds the model's limit.
    """
    wanted_len, limit = config.model.max_model_len, model.plan.max_position_embeddings
    if wanted_len is not None and wanted_len > limit:
        raise ValueError(
            f"max_model_len {wanted_len} is more than the {limit} tokens that the model allows"
        )
    return limit if wanted_len is None else wanted_len


def size_kv_cache(
    config: WorkerConfig,
    model: StepModel,
    transfers: Transfers,
    drafter: Drafter | None = None,
    *,
    state_bytes: int = 0,
) -> tuple[int, int]:
    """Compute the longest sequence in tokens and the number of KV blocks.

    The blocks hold at least one sequence of that length, so that every sequence can finish. A
    length that was not configured is reduced to what the blocks hold.

    Args:
        drafter: the drafter on the worker, if any. If it keeps KV for the same tokens, the size of
            a block includes it.
        state_bytes: memory of recurrent states, which is allocated but not touched on a CPU.

    Raises:
        ValueError: the model or the memory does not allow the configured length or block count.
    """
    block_size, wanted_len = config.block_size, config.model.max_model_len
    max_model_len = resolve_max_model_len(config, model)
    block_bytes = model.kv_block_bytes(block_size)
    if isinstance(drafter, DrafterWithKV):
        block_bytes += block_size * drafter.kv_bytes_per_token
    num_blocks = _num_blocks(
        config, model, transfers, drafter, max_model_len, block_bytes, state_bytes
    )
    if max_model_len > num_blocks * block_size:
        if wanted_len is not None:
            missing_blocks = -(-wanted_len // block_size) - num_blocks
            raise ValueError(
                f"max_model_len {wanted_len} is more than the {num_blocks * block_size} tokens "
                f"that {num_blocks} KV blocks of {block_size} hold: one such sequence needs "
                f"{missing_blocks * block_bytes / 2**20:.1f} MiB more"
            )
        max_model_len = num_blocks * block_size
    if isinstance(drafter, DrafterWithKV) and transfers.device.type == "cuda":
        drafter.reserve_kv(num_blocks * block_size)
    return max_model_len, num_blocks


def _num_blocks(
    config: WorkerConfig,
    model: StepModel,
    transfers: Transfers,
    drafter: Drafter | None,
    max_model_len: int,
    block_bytes: int,
    state_bytes: int,
) -> int:
    if transfers.device.type == "cuda":
        if config.num_blocks is not None:
            torch.cuda.empty_cache()  # free what loading left in torch's cache
            available = torch.cuda.mem_get_info(transfers.device)[0]
            return _checked(config.num_blocks, block_bytes, available)
        return _measured(config, model, transfers, drafter, max_model_len, block_bytes)
    available = max(0, available_cpu_memory() - state_bytes * config.num_local_workers)
    if config.num_blocks is not None:
        return _checked(config.num_blocks, block_bytes, max(0, available - config.host_kv_bytes))
    return num_cpu_blocks(
        block_bytes,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        available_bytes=max(0, available // config.num_local_workers - config.host_kv_bytes),
    )


def _measured(
    config: WorkerConfig,
    model: StepModel,
    transfers: Transfers,
    drafter: Drafter | None,
    max_model_len: int,
    block_bytes: int,
) -> int:
    """Profile the largest steps on the GPU and fill the remaining memory with blocks."""
    try:
        memory = measure_gpu_memory(
            model,
            transfers,
            make_profiling_steps(config, model, transfers, drafter, max_model_len),
            utilization=config.gpu_memory_utilization,
            block_size=config.block_size,
            captures_graphs=not config.enforce_eager,
            conservative=config.conservative_dry_run,
        )
    except torch.OutOfMemoryError as error:
        num_drafts = max_draft_tokens(config.speculation, drafter)
        verifying = f", or for verifying {num_drafts} drafts a sequence" if num_drafts else ""
        raise ValueError(
            f"no GPU memory for a step of {config.max_num_batched_tokens} tokens "
            f"(--max-num-batched-tokens){verifying}: {str(error).partition(chr(10))[0]}"
        ) from error
    logger.info("%s", memory.describe())
    return num_gpu_blocks(memory, block_bytes, config.block_size)


def make_profiling_steps(
    config: WorkerConfig,
    model: StepModel,
    transfers: Transfers,
    drafter: Drafter | None,
    max_model_len: int,
) -> ProfilingSteps:
    """The largest steps that the configuration allows."""
    num_drafts = max_draft_tokens(config.speculation, drafter)
    limits = {
        "max_num_seqs": config.max_num_seqs,
        "num_tokens": config.max_num_batched_tokens,
        "max_model_len": max_model_len,
    }
    verification = None
    if num_drafts:
        verification = largest_verification(
            transfers, num_drafts=num_drafts, has_branches=model.max_tree_paths > 0, **limits
        )
    return ProfilingSteps(
        largest_step(transfers, **limits, has_states=bool(model.plan.states)),
        verification,
        drafter,
        make_typical(config.speculation),
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        max_logprobs=config.max_logprobs,
    )


def _checked(num_blocks: int, block_bytes: int, available_bytes: int) -> int:
    if num_blocks * block_bytes > available_bytes:
        raise ValueError(
            f"{num_blocks} KV blocks take {mebibytes(num_blocks * block_bytes)}, and only "
            f"{mebibytes(available_bytes)} of memory are available"
        )
    return num_blocks


def num_cpu_blocks(
    block_bytes: int,
    *,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
    available_bytes: int,
) -> int:
    """The number of blocks on a CPU: enough for a full batch, within half the available memory.

    Args:
        block_bytes: see `bytes_per_block`.
        available_bytes: memory available after the weights were loaded.

    Raises:
        ValueError: the memory does not hold one block.
    """
    blocks_per_sequence = -(-max_model_len // block_size)
    fitting = int(available_bytes * _CPU_MEMORY_SHARE) // block_bytes
    if fitting < 1:
        raise ValueError(
            f"no memory for the KV cache: a block of {block_size} tokens takes "
            f"{block_bytes / 2**20:.1f} MiB, and of the {available_bytes / 2**20:.1f} MiB that are "
            f"available {_CPU_MEMORY_SHARE:.0%} may be used"
        )
    return min(blocks_per_sequence * max_num_seqs, fitting)
