"""Measured costs follow emulated links, all ranks get the same, and a file keeps what holds."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.emulated_ranks import start_ranks
from support.patience import PATIENCE_SECONDS, wait_until
from taco_train.cluster.emulation.emulator import EmulatedHosts, emulate
from taco_train.cluster.emulation.fabric import Fabric
from taco_train.lightcc.cost_cache import from_dict
from taco_train.lightcc.cost_model import Costs

pytestmark = pytest.mark.process

MAX_REPEATS = 4
# Measures for each file `measure-NUMBER` that appears, which has the name of the cache's file.
SCRIPT = """
import itertools, json, sys, time
from dataclasses import asdict
from pathlib import Path
from taco_train.collective.communicator import Communicator
from taco_train.collective.store import connect
from taco_train.lightcc.cost_cache import CostCache
from taco_train.lightcc.measure import measure
folder = Path(sys.argv[1])
communicator = Communicator(*connect())
for number in itertools.count():
    wanted = folder / f"measure-{number}"
    while not wanted.exists():
        time.sleep(0.01)
    if wanted.read_text() == "finish":
        break
    cache = CostCache.of({"TACO_TRAIN_LINK_CACHE": wanted.read_text()})
    result = folder / f"result-{number}-{communicator.rank}"
    result.with_suffix(".new").write_text(json.dumps(asdict(measure(communicator, cache))))
    result.with_suffix(".new").rename(result)
communicator.barrier()
communicator.close()
"""


class Measuring:
    """Ranks that measure their links when told to."""

    def __init__(self, hosts: EmulatedHosts, folder: Path) -> None:
        self.hosts = hosts
        self._folder = folder
        self._number = 0
        self._ranks = start_ranks(hosts, 2, SCRIPT, folder)

    def measure(self, cache: Path | str) -> Costs:
        """The costs, which must be the same on all ranks."""
        self._ask(str(cache))
        files = [self._folder / f"result-{self._number}-{rank}" for rank in range(4)]
        wait_until(
            lambda: all(file.exists() for file in files) or self._ranks.poll() is not None,
            "a result",
        )
        results = {file.read_text() for file in files}
        assert len(results) == 1
        self._number += 1
        return from_dict(json.loads(results.pop()))

    def _ask(self, wanted: str) -> None:
        (self._folder / "wanted").write_text(wanted)
        (self._folder / "wanted").rename(self._folder / f"measure-{self._number}")

    def finish(self) -> None:
        self._ask("finish")
        assert self._ranks.wait(PATIENCE_SECONDS) == 0


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[Measuring]:
    with emulate(Fabric(hosts=2, rate=20e6)) as hosts:
        yield Measuring(hosts, tmp_path)


def test_costs_follow_the_links(measuring: Measuring, tmp_path: Path) -> None:
    cache = tmp_path / "links.json"
    slow = measuring.measure(cache)
    # A link of 20 Mbit/s carries no more, and with headers somewhat less. If other processes took
    # the cores meanwhile, it is measured again.
    for _ in range(MAX_REPEATS):
        if 8 / slow.hosts.per_byte > 0.6 * 20e6:
            break
        cache.unlink()
        slow = measuring.measure(cache)
    assert (slow.num_hosts, slow.ranks_per_host) == (2, 2)
    assert 0.6 * 20e6 < 8 / slow.hosts.per_byte < 1.1 * 20e6

    assert measuring.measure(cache) == slow  # from the file
    measuring.hosts.set_rate(1e9)
    fast = measuring.measure(cache)  # what the file has does not hold
    assert 2 / slow.hosts.per_byte < 1 / fast.hosts.per_byte
    (entry,) = json.loads(cache.read_text()).values()
    assert from_dict(entry["costs"]) == fast
    measuring.finish()
