"""`from horovod.common.elastic import ObjectState`."""

from taco_train.lightcc.horovod.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State"]
