"""Real launchers: torchrun's agent store, rank 0's own store, mpirun with nothing but PMIx."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import main as torchrun

from support.forked_program import ForkedProgram
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import free_port
from support.train_processes import RankPool
from taco_train.cluster.emulation.emulator import emulate
from taco_train.cluster.emulation.fabric import Fabric

pytestmark = pytest.mark.process

SCRIPT = """
import json, os, sys
from taco_train.collective.store import connect
for generation in range(2):
    placement, store = connect(timeout=150)
    store.set(f"from {placement.rank}", f"{generation}")
    values = [store.get(f"from {rank}").decode() for rank in range(placement.size)]
    assert values == [str(generation)] * placement.size, values
    if store.add("done", 1) == placement.size:
        store.set("all", "")
    store.get("all")
placed = [placement.rank, placement.size, placement.local_rank, placement.cross_rank]
with open(os.path.join(sys.argv[1], str(placement.rank)), "w") as file:
    json.dump(placed, file)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launchers") / "script.py"
    path.write_text(SCRIPT)
    return path


def placements(folder: Path, size: int) -> list[list[int]]:
    return [json.loads((folder / f"{rank}").read_text()) for rank in range(size)]


def launch(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


def test_torchrun(script: Path, tmp_path: Path) -> None:
    flags = ["--standalone", "--nproc-per-node=2"]
    program = ForkedProgram(torchrun, *flags, script, tmp_path, folder=tmp_path)
    assert program.wait() == 0, program.stderr
    assert placements(tmp_path, 2) == [[0, 2, 0, 0], [1, 2, 1, 0]]


def test_mpirun_on_two_hosts(script: Path, tmp_path: Path) -> None:
    """Nothing names rank 0; two ranks dial it, from its own host and from another one.

    mpirun starts its daemon on the other host by an agent, as it does by ssh on real ones.
    """
    assert shutil.which("mpirun"), "the tests need mpirun (Debian: apt-get install openmpi-bin)"
    folder = tmp_path / "placements"
    folder.mkdir()
    agent = tmp_path / "agent.sh"
    agent.write_text(f"""#!/bin/sh
shift  # the host's name
exec nsenter --target "$(cat {tmp_path}/pid)" --net --uts sh -c "$*"
""")
    agent.chmod(0o755)
    with emulate(Fabric(hosts=2)) as hosts:
        hosts.start(1, ["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 1000"])
        wait_until((tmp_path / "pid").exists, "the process on host 1")
        command = [
            # Concurrent tests have equal host names and process ids, which name mpirun's folder.
            *("env", f"TMPDIR={tmp_path}"),
            *("mpirun", "-np", "3", "-H", "host0:2,host1:1", "--allow-run-as-root"),
            *("-bind-to", "none", "-mca", "btl_tcp_if_include", "eth0"),
            *("-mca", "plm_rsh_agent", agent, sys.executable, script, folder),
        ]
        assert hosts.start(0, list(map(str, command))).wait(PATIENCE_SECONDS) == 0
    assert placements(folder, 3) == [[0, 3, 0, 0], [1, 3, 1, 0], [2, 3, 0, 1]]


ALONE = """
import os, pathlib, sys, time
from taco_train.cluster import pmix
from taco_train.cluster.store import RendezvousError
said = pathlib.Path(sys.argv[1])
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    while not said.exists():
        time.sleep(0.02)
    sys.exit()
try:
    pmix.exchange("where", os.environ, 1)
except RendezvousError as error:
    said.with_suffix(".part").write_text(str(error))
    said.with_suffix(".part").rename(said)
"""


def test_mpirun_names_the_call_that_blocks(tmp_path: Path) -> None:
    """Rank 1 never asks for the address of rank 0."""
    script, said = tmp_path / "alone.py", tmp_path / "said"
    script.write_text(ALONE)
    launch(
        *("env", f"TMPDIR={tmp_path}", "mpirun", "-np", "2", "--oversubscribe"),
        *("--allow-run-as-root", sys.executable, script, said),
    )
    assert said.read_text().startswith(
        "rank 0: PMIx_Fence has not returned within 1 s: another rank has not come so far"
    )


def connect_twice() -> list[tuple[int, int]]:
    """Cross rank, and what the store has, of two generations."""
    from taco_train.collective.store import connect

    found = []
    for _ in range(2):
        placement, store = connect(timeout=PATIENCE_SECONDS)
        found.append((placement.cross_rank, store.add(f"calls {placement.rank}", 1)))
    return found


def test_rank_0_serves_the_store() -> None:
    with RankPool(2, hosts=["a", "b"]) as pool:
        assert pool.run(connect_twice) == [[(0, 1), (0, 1)], [(1, 1), (1, 1)]]


def test_one_rank_needs_no_store() -> None:
    with RankPool(1) as pool:
        assert pool.run(connect_twice) == [[(0, 1), (0, 1)]]


def connect_to(address: str, port: int) -> str:
    from taco_train.cluster.store import RendezvousError
    from taco_train.collective.store import open_store

    try:
        open_store(address, port, serves=False, timeout=1)
    except RendezvousError as error:
        return str(error)
    return ""


def test_a_store_that_is_not_there_is_named() -> None:
    port = free_port()
    with RankPool(1) as pool:
        (message,) = pool.run(connect_to, "127.0.0.1", port)
    assert message.startswith(f"the store at 127.0.0.1:{port} cannot be reached within 1 s: ")
    assert "\n" not in message
