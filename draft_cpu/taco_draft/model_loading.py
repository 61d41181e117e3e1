"""Loads the draft model for a draft worker's configuration and sizes its KV cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from taco_draft.ipex import import_ipex, optimize
from taco_draft.quantization import as_for_worker, or_int8
from taco_kernels.native.cores import available_cores
from taco_proto.config import DrafterConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker.backends.cpu.kernel_startup import start_cpu_kernels
from taco_worker.backends.model_loading import load_step_model
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.devices.byte_units import mebibytes
from taco_worker.devices.transfers import Transfers
from taco_worker.memory.kv_sizing import size_kv_cache
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.models.step_model import StepModel, describe
from taco_worker.recurrent_limits import check_draft_plan

logger = logging.getLogger("taco.draft-worker")


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft model with its KV cache."""

    model: StepModel
    max_model_len: int
    block_size: int
    num_blocks: int


def load_draft_model(config: DrafterConfig) -> DraftModel:
    """Load the draft model.

    Raises:
        ConfigurationError: the model cannot be found, read or run as configured.
    """
    try:
        return _load(config)
    except ValueError as error:
        raise ConfigurationError(str(error).partition("\n")[0]) from error


def _load(config: DrafterConfig) -> DraftModel:
    transfers = Transfers(torch.device("cpu"))
    as_worker = WorkerConfig(
        model=config.model,
        device="cpu",
        num_threads=config.num_threads,
        max_num_seqs=config.max_num_seqs,
        num_blocks=config.num_blocks,
    )
    match config.backend:
        case "kernels":
            model = _load_for_kernels(as_worker, transfers)
        case "ipex":
            model = _load_for_ipex(as_worker, transfers)
        case unknown:
            raise ValueError(f"unknown draft_backend {unknown!r}; known: kernels, ipex")
    check_draft_plan(model.plan)
    max_model_len, num_blocks = size_kv_cache(as_worker, model, transfers)
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


def _load_for_kernels(config: WorkerConfig, transfers: Transfers) -> StepModel:
    """Load the model for our CPU kernels, or for torch if they are missing.

    The default of an unquantized checkpoint is int8 with the kernels: a slightly worse draft costs
    less than a late one. Torch has no int8.
    """
    kernels = start_cpu_kernels(config.num_threads)
    # Torch's threads would compete with those of the kernels.
    torch.set_num_threads(1 if kernels else available_cores().num_threads(config.num_threads))
    wanted = as_for_worker(config.model)
    if kernels:
        wanted = or_int8(config.model, find_checkpoint(wanted))
    return load_step_model(replace(config, model=wanted), kernels, transfers)[1]


def _load_for_ipex(config: WorkerConfig, transfers: Transfers) -> StepModel:
    ipex = import_ipex()
    torch.set_num_threads(available_cores().num_threads(config.num_threads))
    quantization = as_for_worker(config.model).quantization
    if quantization not in (None, "int8"):
        raise ValueError(f"draft_backend ipex has no quantization {quantization!r}, only int8")
    unquantized = replace(config, model=replace(config.model, quantization=None))
    _, model = load_step_model(unquantized, None, transfers)
    assert isinstance(model, TorchModel)
    optimize(model.network, ipex, quantization)
    dtype = torch.int8 if quantization else model.network.dtype
    model.description = describe("ipex", torch.get_num_threads(), dtype)
    return model
