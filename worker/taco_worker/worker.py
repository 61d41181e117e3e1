"""A worker in this process: a model, its KV cache and its batch, driven by step plans."""

import logging
import os
from pathlib import Path
from typing import get_args

import torch

from taco_proto.config import WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_worker.input_batch import InputBatch, PlanError
from taco_worker.kv_memory import available_cpu_memory, num_cpu_blocks
from taco_worker.model_runner import ModelRunner
from taco_worker.models.checkpoint import LoadFormat
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.dtypes import resolve_dtype
from taco_worker.models.hub import resolve_model
from taco_worker.models.loader import load_model
from taco_worker.models.step_model import StepModel
from taco_worker.models.torch_model import TorchModel

logger = logging.getLogger("taco.worker")


class Worker:
    """Executes step plans one after the other. Not thread safe.

    Plans carry an epoch. The first plan of a higher epoch empties the batch; a plan of a lower one
    is refused. When a step fails, what it did to the batch and to the KV of its own tokens is
    unknown, so that later plans of that epoch are refused too, until the scheduler starts over with
    a new one.
    """

    def __init__(self, config: WorkerConfig) -> None:
        """Loads the model.

        Raises:
            ConfigurationError: the model cannot be found, read or run as the configuration says.
        """
        device = _device(config)
        torch.set_num_threads(config.num_threads or len(os.sched_getaffinity(0)))
        try:
            model_config, model = _load(config, device)
            max_model_len, num_blocks = _size_kv(config, model)
            model.allocate_kv(num_blocks, config.block_size, max_model_len)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        self.info = _describe(config, model_config, max_model_len, num_blocks)
        self._batch = InputBatch(
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            block_size=config.block_size,
            num_blocks=num_blocks,
            vocab_size=model.config.vocab_size,
            eos_token_ids=model_config.eos_token_ids,
        )
        self._runner = ModelRunner(model, self._batch)
        self._epoch = 0
        self._failed = False
        _log_start(self.info, model)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step. Never raises for a step that failed: the output's `error` says why."""
        if plan.epoch < self._epoch:
            return _failure(plan, f"epoch {plan.epoch} is over, this is epoch {self._epoch}")
        if plan.epoch > self._epoch:
            self.reset()
            self._epoch = plan.epoch
        if self._failed:
            return _failure(plan, f"an earlier step of epoch {plan.epoch} failed")
        try:
            return self._runner.run(plan)
        except PlanError as error:
            logger.error("step %d of epoch %d: %s", plan.step_id, plan.epoch, error)
            self._failed = True
            return _failure(plan, f"invalid plan: {error}")
        except Exception as error:
            logger.exception("step %d of epoch %d failed", plan.step_id, plan.epoch)
            self._failed = True
            return _failure(plan, f"{type(error).__name__}: {error}")

    def reset(self) -> None:
        """Forget all sequences and the epoch, for a scheduler that starts afresh."""
        self._batch.clear()
        self._epoch = 0
        self._failed = False


def _device(config: WorkerConfig) -> torch.device:
    if config.device != "cpu":
        raise ConfigurationError(f"device {config.device!r} is not supported; supported: cpu")
    return torch.device(config.device)


def _load(config: WorkerConfig, device: torch.device) -> tuple[ModelConfig, StepModel]:
    wanted = config.model
    load_format: LoadFormat
    match wanted.load_format:
        case "auto" | "safetensors" | "pt" | "dummy" as load_format:
            pass
        case unknown:
            known = ", ".join(get_args(LoadFormat))
            raise ValueError(f"unknown load format {unknown!r}; known: {known}")
    model_dir = resolve_model(
        wanted.model,
        revision=wanted.revision,
        download_dir=None if wanted.download_dir is None else Path(wanted.download_dir),
    )
    model = load_hf_config(
        model_dir, rope_scaling=wanted.rope_scaling, rope_theta=wanted.rope_theta
    )
    dtype = resolve_dtype(wanted.dtype, model.checkpoint_dtype, device)
    decoder = load_model(
        model_dir, model, dtype=dtype, device=device, load_format=load_format, seed=wanted.seed
    )
    return model, TorchModel(decoder)


def _size_kv(config: WorkerConfig, model: StepModel) -> tuple[int, int]:
    """The longest sequence in tokens, and how many blocks to have.

    The blocks hold at least one sequence of that length, so that every sequence can finish; a
    length that nobody asked for is cut to what they hold.
    """
    block_size, wanted_len = config.block_size, config.model.max_model_len
    limit = model.config.max_position_embeddings
    if wanted_len is not None and wanted_len > limit:
        raise ValueError(
            f"max_model_len {wanted_len} is more than the {limit} tokens that the model allows"
        )
    max_model_len = limit if wanted_len is None else wanted_len

    block_bytes = model.kv_block_bytes(block_size)
    available_bytes = available_cpu_memory()
    num_blocks = config.num_blocks
    if num_blocks is None:
        num_blocks = num_cpu_blocks(
            block_bytes,
            block_size=block_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            available_bytes=available_bytes,
        )
    elif num_blocks * block_bytes > available_bytes:
        raise ValueError(
            f"{num_blocks} KV blocks take {_mebibytes(num_blocks * block_bytes)}, and only "
            f"{_mebibytes(available_bytes)} of memory are available"
        )
    if max_model_len > num_blocks * block_size:
        if wanted_len is not None:
            raise ValueError(
                f"max_model_len {wanted_len} is more than the {num_blocks * block_size} tokens "
                f"that {num_blocks} KV blocks of {block_size} hold"
            )
        max_model_len = num_blocks * block_size
    return max_model_len, num_blocks


def _describe(
    config: WorkerConfig, model: ModelConfig, max_model_len: int, num_blocks: int
) -> WorkerInfo:
    return WorkerInfo(
        name=config.name,
        model=config.model.served_name,
        max_model_len=max_model_len,
        vocab_size=model.decoder.vocab_size,
        eos_token_ids=model.eos_token_ids,
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_logprobs=config.max_logprobs,
        default_sampling=model.sampling_defaults,
    )


def _log_start(info: WorkerInfo, model: StepModel) -> None:
    kv_bytes = info.num_blocks * model.kv_block_bytes(info.block_size)
    logger.info(
        "%s on %s: weights %s, KV cache %s (%d blocks, %d tokens), %d sequences of at most %d "
        "tokens",
        info.model,
        model.description,
        _mebibytes(model.weight_bytes),
        _mebibytes(kv_bytes),
        info.num_blocks,
        info.num_blocks * info.block_size,
        info.max_num_seqs,
        info.max_model_len,
    )


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"


def _failure(plan: StepPlan, error: str) -> StepOutput:
    return StepOutput(epoch=plan.epoch, step_id=plan.step_id, error=error)
