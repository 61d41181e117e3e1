"""`horovodrun --check-build`: what this installation supports, in Horovod's form."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from taco_train.native import build


def check_build(version: str) -> str:
    """A text with a mark before each part that is there."""
    has_nccl = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    groups = {
        "Available Frameworks": {"TensorFlow": False, "PyTorch": True, "MXNet": False},
        "Available Controllers": {"MPI": False, "Gloo": True},
        "Available Tensor Operations": {
            "NCCL": has_nccl,
            "DDL": False,
            "CCL": False,
            "MPI": False,
            "Gloo": True,
        },
        "LightCC": {
            "Native library": build.library_file("collective").exists(),
            "Ray": find_spec("ray") is not None,
        },
    }
    lines = [f"Horovod v{version} (LightCC):"]
    for title, parts in groups.items():
        lines += ["", f"{title}:"]
        lines += [f"    [{'X' if has else ' '}] {name}" for name, has in parts.items()]
    return "\n".join(lines)
