"""The command `horovodrun`."""

from taco_train.lightcc.launcher.main import main

__all__ = ["main"]
