"""`hvd.elastic`."""

from taco_train.lightcc.horovod.torch.elastic import *  # noqa: F403
from taco_train.lightcc.horovod.torch.elastic import __all__ as __all__
