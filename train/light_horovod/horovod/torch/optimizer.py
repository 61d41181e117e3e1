"""`from horovod.torch.optimizer import DistributedOptimizer`."""

from taco_train.lightcc.horovod.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
