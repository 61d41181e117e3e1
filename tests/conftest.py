"""Settings of the whole test suite."""

import functools
import gc
import logging
import os
import random
import re
import signal
import sys
import warnings
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, register_random, settings

from taco_common.logging import ServiceHandler

if TYPE_CHECKING:
    from support.redis_server import RedisServer

# One thread a process: tests run many small tensors, and the machine has two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["TACO_TRAIN_LINK_CACHE"] = ""  # tests measure links, and leave no file in the home
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Tests start hundreds of processes: each would compile all modules again, and pytest the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts pytest in the background ignores SIGINT for it, and Python keeps that: neither
# pytest nor the processes that tests start would hear an interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=60, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("quick", max_examples=20, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("long", max_examples=5000, **_COMMON)  # type: ignore[arg-type]


def pytest_configure(config: pytest.Config) -> None:
    default = "quick" if config.getoption("quick") else "ci"
    settings.load_profile(os.environ.get("TACO_HYPOTHESIS_PROFILE", default))


# Markers that every test of a folder has; others stand in the modules. See pyproject.toml.
FOLDER_MARKERS = {
    "chaos": ("process", "kernels"),
    "demo": ("kernels",),
    "deploy": ("process",),
    "draft_cpu": ("kernels",),
    "e2e": ("process", "kernels"),
    "examples": ("process", "kernels"),
    "kernels": ("kernels",),
    "train": ("ranks",),
    "worker": ("kernels",),
}
NOT_QUICK = frozenset({"process", "kernels", "ranks", "slow"})
# The markers of all tests of a module: the statement `pytestmark = …`, to the next blank line.
_MODULE_MARKERS = re.compile(r"^pytestmark = (?:.+\n)+", re.MULTILINE)
_TESTS = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="run only tests without the markers process, kernels, ranks and slow",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --quick, folders and modules without a quick test are not imported: it takes seconds."""
    if not config.getoption("quick"):
        return None
    markers = {*_folder_markers(collection_path), *_module_markers(collection_path)}
    return True if NOT_QUICK & markers else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that collection makes is garbage, and it is not looked through again and again.

    It is not frozen afterwards: hypothesis asks who refers to an object, and would not see it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker in _folder_markers(item.path):
            item.add_marker(marker)
    if config.getoption("quick"):
        quick = [item for item in items if not any(map(item.get_closest_marker, NOT_QUICK))]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(quick)])
        items[:] = quick
    # One long test at the end would keep one core busy and leave the others idle. Modules stay
    # whole: their fixtures are made once.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _seed_random_numbers(item.nodeid)
    if item.get_closest_marker("kernels"):
        _build_cpu_kernels()


def _seed_random_numbers(name: str) -> None:
    """Make the random numbers of a test independent of the tests before it in its process.

    $TACO_TEST_SEED chooses others. Libraries that are not imported yet are left alone.
    """
    seed = zlib.crc32(f"{os.environ.get('TACO_TEST_SEED', '')}{name}".encode())
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        _TORCH_RANDOM.test_seed = seed
        _TORCH_RANDOM.seed(0)
        _register_torch_random()


class _TorchRandom:
    """Torch's random numbers, for hypothesis, which seeds and restores those of Python itself."""

    test_seed = 0

    def seed(self, seed: int) -> None:
        torch = sys.modules["torch"]
        torch.default_generator.manual_seed(self.test_seed + seed)
        # torch.manual_seed formats the stack for each kind of device that it has not initialized:
        # half a millisecond for each test and each example.
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(self.test_seed + seed)

    def getstate(self) -> object:
        return sys.modules["torch"].get_rng_state()

    def setstate(self, state: object) -> None:
        sys.modules["torch"].set_rng_state(state)


_TORCH_RANDOM = _TorchRandom()


@functools.cache
def _register_torch_random() -> None:
    """From now on an example of hypothesis has the same numbers whenever it runs."""
    register_random(_TORCH_RANDOM)


def _folder_markers(path: Path) -> tuple[str, ...]:
    folder, *_ = path.relative_to(_TESTS).parts or ("",)
    return FOLDER_MARKERS.get(folder, ())


def _module_markers(path: Path) -> list[str]:
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        return []
    statement = _MODULE_MARKERS.search(path.read_text())
    return [] if statement is None else re.findall(r"mark\.(\w+)", statement[0])


@functools.cache
def _build_cpu_kernels() -> None:
    """Workers take the library as they find it, and torch where it is not of these sources."""
    from taco_kernels import build  # most tests need no kernels

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
