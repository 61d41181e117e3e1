"""Imports torch without running the parts that no step on a CPU uses."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata

from taco_common.lazy_modules import lazy_modules
from taco_worker.devices.gpu_presence import runs_on_cpu

# They take 0.8 of the 2.1 seconds of `import torch` on an AMD EPYC (Zen 3).
_UNUSED = (
    "torch._meta_registrations",
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.optim",
    "torch.profiler",
    "torch.quantization",
    "torch.testing",
)
# They need the shapes of all operators, which torch._meta_registrations declares.
_COMPILERS = ("torch._dynamo", "torch._export", "torch._inductor")
# The order of torch's imports matters, so other versions are imported as they are.
_TESTED_VERSIONS = ("2.13.",)


def lean_torch(device: str) -> AbstractContextManager[None]:
    """A context in which a process that computes on a CPU imports torch.

    Modules that it leaves out run when something uses them, such as a user's logits processor. Only
    tensors on the device `meta` lack operators until a compiler of torch is imported.

    Args:
        device: of the configuration.
    """
    if "torch" in sys.modules or not runs_on_cpu(device):
        return nullcontext()
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return nullcontext()
    if not version.startswith(_TESTED_VERSIONS):
        return nullcontext()
    return lazy_modules(_UNUSED, until=_COMPILERS)
