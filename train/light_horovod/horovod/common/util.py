"""`from horovod.common.util import nccl_built`."""

from taco_train.lightcc.horovod.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "mpi_built",
    "nccl_built",
    "rocm_built",
]
