"""File descriptor limit (`ulimit -n`): each connection takes one.

Without a free descriptor the event loop closes new connections silently, so this module raises the
limit, reduces `--max-connections` to it, and logs an error when none is left.
"""

import errno
import logging
import os
import resource
from time import monotonic

RESERVED_DESCRIPTORS = 128  # for the scheduler connection, child processes, files
WANTED_DESCRIPTORS = 65536
LOG_INTERVAL_SECONDS = 60.0

logger = logging.getLogger("taco.gateway")


def raise_descriptor_limit() -> None:
    """Raises the soft limit of this process towards the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_within_limit(max_connections: int) -> int:
    """`max_connections`, or less with a warning where the descriptor limit requires it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max_connections
    allowed = max(soft - RESERVED_DESCRIPTORS, soft // 2, 1)
    if allowed >= max_connections:
        return max_connections
    logger.warning(
        "serving at most %d connections instead of --max-connections %d: the file descriptor "
        "limit is %d; raise it with ulimit -n",
        allowed,
        max_connections,
        soft,
    )
    return allowed


class DescriptorCheck:
    """Logs an error when no descriptor is left, at most once in `LOG_INTERVAL_SECONDS`."""

    def __init__(self) -> None:
        self._last_log = float("-inf")

    def check(self) -> bool:
        """Whether a descriptor is left."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._log(error)
            return False
        return True

    def _log(self, error: OSError) -> None:
        now = monotonic()
        if now - self._last_log < LOG_INTERVAL_SECONDS:
            return
        self._last_log = now
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        logger.error(
            "no file descriptor is left (%s, limit %d): new connections are closed without an "
            "answer; raise ulimit -n or lower --max-connections",
            error.strerror,
            soft,
        )
