"""LightCC under the import name of Horovod."""

from taco_train.lightcc.launcher.run_function import run

__version__ = "0.1.0"
__all__ = ["__version__", "run"]
