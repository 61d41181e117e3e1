"""Loads a worker. Torch is imported here, and the memory of the weights is touched meanwhile."""

from __future__ import annotations

import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from taco_common.garbage import without_collections
from taco_kernels.native.mapped_memory import EarlyMemory
from taco_proto.config import WorkerConfig
from taco_worker.devices.gpu_presence import runs_on_cpu
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.startup_checks import matrix_bytes

if TYPE_CHECKING:
    from taco_worker.worker import Worker

_MIN_BYTES = 64 << 20  # less is touched in milliseconds
_MEMORY_NODES = Path("/sys/devices/system/node")


def load_worker(config: WorkerConfig) -> Worker:
    """Load a worker's model.

    Raises:
        ConfigurationError: the model cannot be found, read or run with this configuration.
    """
    memory = early_weight_memory(config)
    with nullcontext() if memory is None else closing(memory):
        with without_collections():
            from taco_worker.worker import Worker

        return Worker(config, weight_memory=memory)


def early_weight_memory(config: WorkerConfig, nodes: Path = _MEMORY_NODES) -> EarlyMemory | None:
    """Memory for a model's matrices; None where touching it early gains nothing.

    On a machine with several memory nodes each thread should touch what it will read.
    """
    path = Path(config.model.model).expanduser()
    if "torch" in sys.modules or not runs_on_cpu(config.device) or not path.exists():
        return None
    if len([*nodes.glob("node[0-9]*")]) > 1:
        return None
    try:
        model = find_checkpoint(config.model)
        if model.files.load_format == "sharded_state":  # mapped
            return None
        num_bytes = matrix_bytes(config, model)
    except ValueError:
        return None  # the worker will say why
    return EarlyMemory(num_bytes, num_bytes // 16) if num_bytes >= _MIN_BYTES else None
