"""A worker in this process: a model, its KV cache and its batch, driven by step plans."""

import logging
from collections.abc import Callable

import torch

from taco_kernels.cpu.library import CpuKernels
from taco_kernels.cpu.memory import huge_page_bytes
from taco_kernels.cpu.threads import available_cores
from taco_proto.config import WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_worker.cpu_kernels import start_cpu_kernels
from taco_worker.input_batch import InputBatch, PlanError
from taco_worker.kv_memory import available_cpu_memory, num_cpu_blocks
from taco_worker.load import load_step_model
from taco_worker.model_runner import ModelRunner
from taco_worker.models.config import ModelConfig
from taco_worker.models.step_model import StepModel

logger = logging.getLogger("taco.worker")


class Worker:
    """Executes step plans one after the other. Not thread safe.

    Plans carry an epoch. The first plan of a higher epoch empties the batch; a plan of a lower one
    is refused. When a step fails, what it did to the batch and to the KV of its own tokens is
    unknown, so that later plans of that epoch are refused too, until the scheduler starts over with
    a new one.
    """

    def __init__(
        self,
        config: WorkerConfig,
        start_kernels: Callable[[int | None], CpuKernels | None] = start_cpu_kernels,
    ) -> None:
        """Loads the model.

        Args:
            start_kernels: gives the CPU kernels for a number of threads, or None for torch.

        Raises:
            ConfigurationError: the model cannot be found, read or run as the configuration says.
        """
        if config.device != "cpu":
            raise ConfigurationError(f"device {config.device!r} is not supported; supported: cpu")
        try:
            kernels = start_kernels(config.num_threads)
            # Beside the kernels' own threads torch's would only be in the way.
            threads = 1 if kernels else available_cores().num_threads(config.num_threads)
            torch.set_num_threads(threads)
            model_config, model = load_step_model(config, kernels)
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
    logger.info(
        "%s on %s: weights %s, KV cache %s (%d blocks, %d tokens), %s in huge pages, %d sequences "
        "of at most %d tokens",
        info.model,
        model.description,
        _mebibytes(model.weight_bytes),
        _mebibytes(info.num_blocks * model.kv_block_bytes(info.block_size)),
        info.num_blocks,
        info.num_blocks * info.block_size,
        _mebibytes(huge_page_bytes()),
        info.max_num_seqs,
        info.max_model_len,
    )


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"


def _failure(plan: StepPlan, error: str) -> StepOutput:
    return StepOutput(epoch=plan.epoch, step_id=plan.step_id, error=error)
