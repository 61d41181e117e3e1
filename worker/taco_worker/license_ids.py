"""The ids by which a license names a worker's GPU or CPU host."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch


def license_ids(device: torch.device, host_id: str) -> tuple[str, ...]:
    """The GPU's id as `nvidia-smi -L` prints it; a CPU has the id of its host."""
    if device.type == "cpu":
        return (host_id,)
    properties = torch.cuda.get_device_properties(device)
    return (gpu_id(properties.name, str(properties.uuid)),)


def gpu_id(name: str, uuid: str, environment: Mapping[str, str] = os.environ) -> str:
    """The id of a GPU, or of the MIG instance that the process uses.

    CUDA shows a process one MIG instance at most. A user chooses it by CUDA_VISIBLE_DEVICES, of
    which CUDA takes the first entry. A container runtime chooses it by NVIDIA_VISIBLE_DEVICES; a
    list of several is ignored, because CUDA's order of instances is not documented. Otherwise the
    id is CUDA's UUID. An instance's name contains its profile, for example
    `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    given = environment.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    for instance in (chosen, given):
        if instance.startswith("MIG-") and "," not in instance:
            return instance
    return f"MIG-{uuid}" if " MIG " in name else f"GPU-{uuid}"
