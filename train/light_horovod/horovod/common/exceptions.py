"""`from horovod.common.exceptions import HorovodInternalError`."""

from taco_train.lightcc.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
