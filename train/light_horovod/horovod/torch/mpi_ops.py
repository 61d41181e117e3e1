"""`from horovod.torch.mpi_ops import allreduce_async_, synchronize`."""

from taco_train.lightcc.horovod.torch import *  # noqa: F403
from taco_train.lightcc.horovod.torch import __all__ as __all__
