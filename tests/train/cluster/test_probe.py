"""The probe finds the rates of emulated links, all ranks get the same, and a file keeps them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.patience import PATIENCE_SECONDS, wait_until
from taco_train.cluster.emulation.emulator import EmulatedHosts, EmulatedProcess, emulate
from taco_train.cluster.emulation.fabric import Fabric
from taco_train.cluster.links import LinkCosts

pytestmark = pytest.mark.process

# Runs a probe for each file `probe-NUMBER` that appears, which has the name of the cache's file.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
from taco_train.collective.store import connect
from taco_train.cluster.probe import probe
folder = Path(sys.argv[1])
placement, store = connect()
for number in range(3):
    wanted = folder / f"probe-{number}"
    while not wanted.exists():
        time.sleep(0.01)
    costs = probe(placement, store, {"TACO_TRAIN_LINK_CACHE": wanted.read_text()})
    result = folder / f"result-{number}-{placement.rank}"
    result.with_suffix(".new").write_text(
        json.dumps([costs.to_json(), placement.addresses, placement.hosts])
    )
    result.with_suffix(".new").rename(result)
store.add("done", 1)
while placement.rank == 0 and store.add("done", 0) < placement.size:
    time.sleep(0.01)
"""


class Probing:
    """Ranks that probe their links when told to."""

    def __init__(self, hosts: EmulatedHosts, folder: Path) -> None:
        self.hosts = hosts
        self._folder = folder
        self._number = 0
        self._ranks: list[EmulatedProcess] = []
        for rank, variables in enumerate(hosts.environments(2)):
            command = [sys.executable, "-c", SCRIPT, str(folder)]
            self._ranks.append(hosts.start(rank // 2, command, environment=variables))

    def probe(self, cache: str = "") -> tuple[LinkCosts, list[str], list[str]]:
        """The costs, which must be the same on all ranks, and addresses and hosts of ranks."""
        (self._folder / "wanted").write_text(cache)
        (self._folder / "wanted").rename(self._folder / f"probe-{self._number}")
        files = [self._folder / f"result-{self._number}-{rank}" for rank in range(4)]
        wait_until(
            lambda: all(file.exists() for file in files) or any(r.poll() for r in self._ranks),
            "a result",
        )
        results = {file.read_text() for file in files}
        assert len(results) == 1
        self._number += 1
        costs, addresses, hosts = json.loads(results.pop())
        return LinkCosts.from_json(costs), addresses, hosts

    def finish(self) -> None:
        assert [rank.wait(PATIENCE_SECONDS) for rank in self._ranks] == [0] * 4


@pytest.fixture
def probing(tmp_path: Path) -> Iterator[Probing]:
    with emulate(Fabric(hosts=2, rate=200e6)) as hosts:
        yield Probing(hosts, tmp_path)


def test_rates_of_emulated_links(probing: Probing, tmp_path: Path) -> None:
    cache = str(tmp_path / "links.json")
    costs, addresses, hosts = probing.probe(cache)
    assert hosts == ["host0", "host0", "host1", "host1"]
    assert addresses == ["10.77.0.2", "10.77.0.2", "10.77.1.2", "10.77.1.2"]
    # A link of 200 Mbit/s carries no more; with headers, and on a busy machine, somewhat less.
    slow = costs.between("host0", "host1")
    assert 0.6 * 200e6 < slow.bits_per_second < 1.1 * 200e6

    probing.hosts.set_rate(1e9)
    assert probing.probe(cache)[0] == costs  # from the file
    fast = probing.probe()[0].between("host0", "host1")
    assert 2 * slow.bits_per_second < fast.bits_per_second < 1.1 * 1e9
    sent = [counted.sent_bytes for counted in probing.hosts.counters()]
    assert min(sent) > 4 << 20  # both directions carried the large messages
    probing.finish()
