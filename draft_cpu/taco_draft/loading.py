"""From a draft worker's configuration to a draft model that is ready to run."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from taco_kernels.cpu.library import CpuKernels
from taco_kernels.cpu.threads import available_cores
from taco_proto.config import DrafterConfig, WorkerConfig
from taco_proto.config import ModelConfig as WantedModel
from taco_proto.errors import ConfigurationError
from taco_worker.cpu_kernels import start_cpu_kernels
from taco_worker.kv_sizing import mebibytes, size_kv
from taco_worker.load import load_step_model
from taco_worker.models.step_model import StepModel
from taco_worker.transfers import Transfers

logger = logging.getLogger("taco.draft-worker")


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model with its KV cache."""

    model: StepModel
    max_model_len: int
    block_size: int
    num_blocks: int


def load_draft_model(config: DrafterConfig) -> DraftModel:
    """Raises ConfigurationError for a model that cannot be found, read or run as it is said."""
    try:
        return _load(config)
    except ValueError as error:
        raise ConfigurationError(str(error).partition("\n")[0]) from error


def _load(config: DrafterConfig) -> DraftModel:
    transfers = Transfers(torch.device("cpu"))
    kernels = start_cpu_kernels(config.num_threads)
    # Beside the kernels' own threads torch's would only be in the way.
    torch.set_num_threads(1 if kernels else available_cores().num_threads(config.num_threads))
    as_worker = WorkerConfig(
        model=_with_quantization(config.model, kernels),
        device="cpu",
        num_threads=config.num_threads,
        max_num_seqs=config.max_num_seqs,
        num_blocks=config.num_blocks,
    )
    _, model = load_step_model(as_worker, kernels, transfers)
    max_model_len, num_blocks = size_kv(as_worker, model, transfers)
    block_size = as_worker.block_size
    model.allocate_kv(num_blocks, block_size, max_model_len)
    logger.info(
        "%s on %s: weights %s, KV cache %s (%d blocks, %d tokens), sequences of at most %d tokens",
        config.model.served_name,
        model.description,
        mebibytes(model.weight_bytes),
        mebibytes(num_blocks * model.kv_block_bytes(block_size)),
        num_blocks,
        num_blocks * block_size,
        max_model_len,
    )
    return DraftModel(model, max_model_len, block_size, num_blocks)


def _with_quantization(wanted: WantedModel, kernels: CpuKernels | None) -> WantedModel:
    """A draft that is a little wrong costs little, and one that comes late costs much: int8, unless
    the configuration says otherwise or torch, which has none, must serve."""
    match wanted.quantization:
        case None:
            return replace(wanted, quantization="int8" if kernels else None)
        case "none":
            return replace(wanted, quantization=None)
        case _:
            return wanted
