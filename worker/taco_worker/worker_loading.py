"""Loads a worker. Torch is imported here, and weights are packed for the CPU kernels meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from taco_common.garbage import frozen_imports
from taco_proto.config import WorkerConfig
from taco_worker.backends.cpu.early_weights import EarlyWeights
from taco_worker.devices.gpu_presence import runs_on_cpu
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.startup_checks import matrix_bytes, stored_matrix_type

if TYPE_CHECKING:
    from taco_worker.worker import Worker

_MIN_BYTES = 64 << 20  # less is packed in milliseconds
_MEMORY_NODES = Path("/sys/devices/system/node")


def load_worker(
    config: WorkerConfig, before_weights: Callable[[], object] = lambda: None
) -> Worker:
    """Load a worker's model.

    Args:
        before_weights: is called after torch has been imported; what it raises ends the loading.

    Raises:
        ConfigurationError: the model cannot be found, read or run with this configuration.
    """
    early_weights = pack_early(config)
    with nullcontext() if early_weights is None else closing(early_weights):
        with frozen_imports():
            from taco_worker.worker import Worker

        before_weights()
        return Worker(config, early_weights=early_weights)


def pack_early(config: WorkerConfig, nodes: Path = _MEMORY_NODES) -> EarlyWeights | None:
    """Start packing a model's matrices; None where that gains nothing.

    On a machine with several memory nodes each thread should touch what it will read.
    """
    path = Path(config.model.model).expanduser()
    if "torch" in sys.modules or not runs_on_cpu(config.device) or not path.exists():
        return None
    if len([*nodes.glob("node[0-9]*")]) > 1:
        return None
    try:
        model = find_checkpoint(config.model)
        if model.files.load_format == "sharded_state" or model.files.adapter is not None:
            return None  # mapped, or changed while they are read
        num_bytes = matrix_bytes(config, model)
        if num_bytes < _MIN_BYTES:
            return None
        return EarlyWeights(config, model, stored_matrix_type(config, model), num_bytes)
    except (ValueError, MemoryError):
        return None  # the worker will say why
