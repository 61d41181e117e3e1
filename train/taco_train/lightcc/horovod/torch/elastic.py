"""`hvd.elastic`: training that continues when ranks are lost, and takes new ones in."""

from taco_train.lightcc.horovod.elastic.run import run
from taco_train.lightcc.horovod.elastic.sampler import ElasticSampler
from taco_train.lightcc.horovod.elastic.state import ObjectState, State, TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
