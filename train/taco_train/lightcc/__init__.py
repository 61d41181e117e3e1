"""Fused and compressed all-reduce, under the APIs of Horovod and DDP."""
