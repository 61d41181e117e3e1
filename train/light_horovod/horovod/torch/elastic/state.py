"""`from horovod.torch.elastic.state import TorchState`."""

from taco_train.lightcc.horovod.elastic.state import TorchState

__all__ = ["TorchState"]
