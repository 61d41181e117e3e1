"""`import horovod.torch as hvd`."""

from taco_train.lightcc.horovod.torch import *  # noqa: F403
from taco_train.lightcc.horovod.torch import __all__ as __all__
