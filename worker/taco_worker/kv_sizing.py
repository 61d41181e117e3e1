"""How long a sequence may become, and how many KV blocks there are."""

from __future__ import annotations

import logging

import torch

from taco_proto.config import WorkerConfig
from taco_worker.gpu_memory import largest_step, measure_gpu_memory, num_gpu_blocks
from taco_worker.kv_memory import available_cpu_memory, num_cpu_blocks
from taco_worker.models.step_model import StepModel
from taco_worker.transfers import Transfers

logger = logging.getLogger("taco.worker")


def size_kv(config: WorkerConfig, model: StepModel, transfers: Transfers) -> tuple[int, int]:
    """The longest sequence in tokens, and how many blocks to have.

    The blocks hold at least one sequence of that length, so that every sequence can finish; a
    length that nobody asked for is cut to what they hold.

    Raises:
        ValueError: a length or a number of blocks that the model or the memory does not allow.
    """
    block_size, wanted_len = config.block_size, config.model.max_model_len
    limit = model.config.max_position_embeddings
    if wanted_len is not None and wanted_len > limit:
        raise ValueError(
            f"max_model_len {wanted_len} is more than the {limit} tokens that the model allows"
        )
    max_model_len = limit if wanted_len is None else wanted_len
    num_blocks = _num_blocks(config, model, transfers, max_model_len)
    if max_model_len > num_blocks * block_size:
        if wanted_len is not None:
            missing_blocks = -(-wanted_len // block_size) - num_blocks
            missing_bytes = missing_blocks * model.kv_block_bytes(block_size)
            raise ValueError(
                f"max_model_len {wanted_len} is more than the {num_blocks * block_size} tokens "
                f"that {num_blocks} KV blocks of {block_size} hold: one such sequence needs "
                f"{missing_bytes / 2**20:.1f} MiB more"
            )
        max_model_len = num_blocks * block_size
    return max_model_len, num_blocks


def _num_blocks(
    config: WorkerConfig, model: StepModel, transfers: Transfers, max_model_len: int
) -> int:
    block_bytes = model.kv_block_bytes(config.block_size)
    if transfers.device.type == "cuda":
        if config.num_blocks is not None:
            torch.cuda.empty_cache()  # what loading has left over
            available = torch.cuda.mem_get_info(transfers.device)[0]
            return _checked(config.num_blocks, block_bytes, available)
        return _measured(config, model, transfers, max_model_len, block_bytes)
    available = available_cpu_memory()
    if config.num_blocks is not None:
        return _checked(config.num_blocks, block_bytes, available)
    return num_cpu_blocks(
        block_bytes,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        available_bytes=available,
    )


def _measured(
    config: WorkerConfig,
    model: StepModel,
    transfers: Transfers,
    max_model_len: int,
    block_bytes: int,
) -> int:
    """What a GPU has room for beside the largest step."""
    try:
        memory = measure_gpu_memory(
            model,
            transfers,
            largest_step(
                transfers,
                max_num_seqs=config.max_num_seqs,
                num_tokens=config.max_num_batched_tokens,
                max_model_len=max_model_len,
            ),
            utilization=config.gpu_memory_utilization,
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            max_logprobs=config.max_logprobs,
            block_size=config.block_size,
            captures_graphs=not config.enforce_eager,
            conservative=config.conservative_dry_run,
        )
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"no GPU memory for a step of {config.max_num_batched_tokens} tokens "
            f"(--max-num-batched-tokens): {str(error).partition(chr(10))[0]}"
        ) from error
    logger.info("%s", memory.describe())
    return num_gpu_blocks(memory, block_bytes, config.block_size)


def _checked(num_blocks: int, block_bytes: int, available_bytes: int) -> int:
    if num_blocks * block_bytes > available_bytes:
        raise ValueError(
            f"{num_blocks} KV blocks take {mebibytes(num_blocks * block_bytes)}, and only "
            f"{mebibytes(available_bytes)} of memory are available"
        )
    return num_blocks


def mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
