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

    CUDA shows a process one instance at most. Which one is said by whoever has chosen it: a user,
    whose first choice CUDA takes, or a container runtime, unless it leaves a choice: in what order
    CUDA counts instances is not said. Without them it is the UUID that CUDA gives; whose name has
    the instance's profile in it, such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    given = environment.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    for instance in (chosen, given):
        if instance.startswith("MIG-") and "," not in instance:
            return instance
    return f"MIG-{uuid}" if " MIG " in name else f"GPU-{uuid}"
