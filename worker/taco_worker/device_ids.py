"""By which ids a license names what a worker runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch


def license_ids(device: torch.device, host_id: str) -> tuple[str, ...]:
    """Ids as `nvidia-smi -L` prints them; a CPU has that of its host."""
    if device.type == "cpu":
        return (host_id,)
    properties = torch.cuda.get_device_properties(device)
    return (gpu_id(properties.name, str(properties.uuid)),)


def gpu_id(name: str, uuid: str, environment: Mapping[str, str] = os.environ) -> str:
    """Of one GPU, or of one MIG instance, which serves on its own.

    CUDA shows a process one instance at most. Which one is said by whoever has chosen it: a user in
    the first variable, a container runtime in the second. Without them it is the UUID that CUDA
    gives; whose name has the instance's profile in it, such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    """
    for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        first = environment.get(variable, "").split(",")[0].strip()
        if first.startswith("MIG-"):
            return first
    return f"MIG-{uuid}" if " MIG " in name else f"GPU-{uuid}"
