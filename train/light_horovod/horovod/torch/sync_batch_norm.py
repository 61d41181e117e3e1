"""`from horovod.torch.sync_batch_norm import SyncBatchNorm`."""

from taco_train.lightcc.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
