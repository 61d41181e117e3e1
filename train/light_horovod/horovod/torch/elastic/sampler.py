"""`from horovod.torch.elastic.sampler import ElasticSampler`."""

from taco_train.lightcc.horovod.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
