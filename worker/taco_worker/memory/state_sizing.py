"""How many sequences' recurrent states, and snapshots of them, fit in memory."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from taco_proto.config import WorkerConfig
from taco_worker.devices.byte_units import mebibytes
from taco_worker.devices.cpu_memory import available_cpu_memory
from taco_worker.devices.transfers import Transfers
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.step_states import state_row_bytes

logger = logging.getLogger("taco.worker")

# Of the memory that is available when the weights are loaded: KV takes most of the rest.
_STATE_SHARE = 0.2
# More snapshots than sequences, since one prefix has several.
_SNAPSHOTS_PER_SEQUENCE = 4


def fit_states(
    config: WorkerConfig, plan: ModelPlan, transfers: Transfers
) -> tuple[WorkerConfig, int]:
    """Choose the numbers of sequences and snapshots of a model with recurrent states.

    Returns:
        The configuration, whose max_num_seqs is reduced to what fits, and the number of snapshots;
        for other models the same configuration and 0.

    Raises:
        ValueError: the memory does not hold the states of one sequence.
    """
    if not plan.states:
        return config, 0
    if transfers.device.type == "cuda":
        torch.cuda.empty_cache()  # free what loading left in torch's cache
        free, total = torch.cuda.mem_get_info(transfers.device)
        available = max(0, free - int(total * (1 - config.gpu_memory_utilization)))
    else:
        available = available_cpu_memory() // config.num_local_workers
    row_bytes = state_row_bytes(plan.states)
    num_rows = int(available * _STATE_SHARE) // row_bytes
    most = max(1, num_rows // 2) if config.enable_prefix_caching else num_rows
    max_num_seqs = min(config.max_num_seqs, most)
    if num_rows < 1:
        raise ValueError(
            f"no memory for recurrent states: those of a sequence take {mebibytes(row_bytes)}, and "
            f"of the {mebibytes(available)} that are available {_STATE_SHARE:.0%} may be used"
        )
    if max_num_seqs < config.max_num_seqs:
        logger.warning(
            "max_num_seqs is %d instead of %d: recurrent states take %s a sequence",
            max_num_seqs,
            config.max_num_seqs,
            mebibytes(row_bytes),
        )
    num_snapshots = 0
    if config.enable_prefix_caching:
        num_snapshots = min(_SNAPSHOTS_PER_SEQUENCE * max_num_seqs, num_rows - max_num_seqs)
    return replace(config, max_num_seqs=max_num_seqs), num_snapshots
