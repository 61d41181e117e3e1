"""A host whose link is cut leaves an elastic job, and joins again once the link is back."""

import os
import sys
from pathlib import Path

import pytest

from support.patience import PATIENCE_SECONDS, wait_until
from taco_train.cluster.emulation.emulator import emulate
from taco_train.cluster.emulation.fabric import Fabric

pytestmark = [pytest.mark.process, pytest.mark.slow]

# Two ranks reduce until the link is cut; the one that is left waits until they are two again.
TRAIN = """
import os, time
import torch
import taco_train.lightcc.horovod.torch as hvd

host = os.environ["HOROVOD_HOSTNAME"]

def train(state):
    print("train", host, hvd.size(), flush=True)
    while hvd.size() == 2 and not state.was_alone:
        hvd.allreduce(torch.ones(500_000), name="until the cut")
    while hvd.size() == 1:
        state.was_alone = True
        state.commit()
        time.sleep(0.05)  # until hosts have changed
    return hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item()

hvd.init()
state = hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), was_alone=False)
print("end", host, hvd.elastic.run(train)(state), flush=True)
"""
# Ends as ssh does not: when the launcher says so, not when the link is cut.
SSH = """#!/bin/sh
for last; do :; done
exec nsenter --net=/proc/$(cat {folder}/host1.pid)/ns/net sh -c "$last"
"""


def test_a_host_is_cut_off_and_comes_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    for name, text in (
        ("ssh", SSH.format(folder=tmp_path)),
        ("discover", f"#!/bin/sh\ncat {tmp_path}/hosts\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    with emulate(Fabric(hosts=2)) as hosts, (tmp_path / "lines").open("w") as lines:
        first, second = hosts.fabric.addresses

        def set_hosts(slots_of_second: int) -> None:
            (tmp_path / "new").write_text(f"{first}:1\n{second}:{slots_of_second}\n")
            (tmp_path / "new").rename(tmp_path / "hosts")

        def wait_for(line: str) -> None:
            def has_come() -> bool:
                assert launcher.poll() is None, (tmp_path / "lines").read_text()
                return line in (tmp_path / "lines").read_text()

            wait_until(has_come, line)

        pid = tmp_path / "host1.pid"
        say_pid = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep infinity"
        hosts.start(1, ["sh", "-c", say_pid])
        wait_until(pid.exists, "the process on host 1")
        set_hosts(1)
        options = ["-np", "2", "--min-np", "1", "--max-np", "2"]
        options += ["--host-discovery-script", str(tmp_path / "discover")]
        options += ["--start-timeout", str(int(PATIENCE_SECONDS))]
        options += ["--stall-check-shutdown-time-seconds", "4"]
        launcher = hosts.start(
            0,
            [
                *(sys.executable, "-m", "taco_train.lightcc.launcher.main", *options),
                *(sys.executable, str(tmp_path / "train.py")),
            ],
            environment={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            stdout=lines,
            stderr=lines,
        )
        wait_for(f"train {second} 2\n")
        hosts.cut(1)
        wait_for(f"train {first} 1\n")
        hosts.restore(1)
        set_hosts(2)  # the one that was lost is not used again
        assert launcher.wait(PATIENCE_SECONDS) == 0, (tmp_path / "lines").read_text()
    text = (tmp_path / "lines").read_text()
    assert f"worker 1 on host {second} failed with" in text
    assert f"end {first} 2.0\n" in text
    assert f"end {second} 2.0\n" in text
