"""`from horovod.torch.compression import Compression`."""

from taco_train.lightcc.horovod.torch.compression import Compression

__all__ = ["Compression"]
