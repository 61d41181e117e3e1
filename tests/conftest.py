"""Settings of the whole test suite."""

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from taco_common.logging import ServiceHandler
from taco_kernels import build

if TYPE_CHECKING:
    from support.redis_server import RedisServer

# One thread a process: tests run many small tensors, and the machine has two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell that starts pytest in the background ignores SIGINT for it, and Python keeps that: neither
# pytest nor the processes that tests start would hear an interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("long", max_examples=5000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("TACO_HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def _cpu_kernels_are_built() -> None:
    """Workers take the library as they find it, and torch where it is not of these sources."""
    try:
        build.build()
    except build.KernelBuildError as error:
        warnings.warn(f"the CPU kernels could not be built: {error}", stacklevel=1)


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    """Commands that a test calls in this process set up the root logger, for all tests after it."""
    loggers = [logging.getLogger(name) for name in ("", "taco")]
    levels, handlers = [logger.level for logger in loggers], loggers[0].handlers[:]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    added = [handler for handler in loggers[0].handlers if isinstance(handler, ServiceHandler)]
    for handler in added:
        if handler not in handlers:
            loggers[0].removeHandler(handler)


@pytest.fixture
def redis_server(tmp_path: Path) -> "Iterator[RedisServer]":
    """A real one, empty, which the test may kill, stop and start again."""
    from support.redis_server import RedisServer  # most tests need no Redis

    with RedisServer(tmp_path) as server:
        yield server
