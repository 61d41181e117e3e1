"""Exceptions under the names that Horovod's users catch."""

from __future__ import annotations

from taco_train.lightcc.errors import CollectiveError

HorovodInternalError = CollectiveError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """Hosts of an elastic job have changed: ranks connect anew, and the state stays as it is."""


class NotInitializedError(ValueError):
    """A function needs `hvd.init()` to have been called."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; call hvd.init() first")
