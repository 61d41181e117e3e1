"""`from horovod.ray import RayExecutor`."""

from taco_train.lightcc.on_ray import cluster as _cluster  # noqa: F401 (says what to install)
from taco_train.lightcc.on_ray.elastic import ElasticRayExecutor, RayHostDiscovery
from taco_train.lightcc.on_ray.executor import RayExecutor

__all__ = ["ElasticRayExecutor", "RayExecutor", "RayHostDiscovery"]
