"""`from horovod.ray.elastic import ElasticRayExecutor`."""

from taco_train.lightcc.on_ray.elastic import ElasticRayExecutor, RayHostDiscovery

__all__ = ["ElasticRayExecutor", "RayHostDiscovery"]
