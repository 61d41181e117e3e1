"""`from horovod.ray.runner import RayExecutor`."""

from taco_train.lightcc.on_ray.executor import RayExecutor

__all__ = ["RayExecutor"]
