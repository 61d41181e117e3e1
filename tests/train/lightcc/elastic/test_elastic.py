"""`horovodrun --min-np`: a job continues after a rank is lost, and takes a new host in."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.patience import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.process
RUN = [sys.executable, "-m", "taco_train.lightcc.launcher.main"]
# The first round waits for both workers, also on a busy machine.
START = ["--start-timeout", str(PATIENCE_SECONDS)]
# Ranks have equal batches, so that the result does not depend on their number.
TRAIN = """
import os, signal, sys, threading, time
import torch
import taco_train.lightcc.horovod.torch as hvd
from taco_train.lightcc.horovod.state import current

def model_and_optimizer():
    torch.manual_seed(3)
    model = torch.nn.Linear(5, 1)
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

def step(model, optimizer, number):
    random = torch.Generator().manual_seed(number)
    rows = torch.randn(8, 5, generator=random)
    optimizer.zero_grad()
    loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

def signal_in(stage, number):
    while current().communicator.state().stage != stage:
        pass
    os.kill(os.getpid(), number)

def fault(plan, worker):
    number = signal.SIGSTOP if plan == "stop" else signal.SIGKILL
    if worker and plan in ("kill", "stop"):
        os.kill(os.getpid(), number)
    if worker and plan.startswith("kill in "):
        stage = plan.removeprefix("kill in ")
        threading.Thread(target=signal_in, args=(stage, number), daemon=True).start()
    while plan.startswith("kill in "):  # the others notice there
        hvd.allreduce(torch.ones(2_000_000), name="long")

def main(plan):
    worker = int(os.environ["HOROVOD_ELASTIC_WORKER"])
    model, optimizer = model_and_optimizer()  # this imports much: not while others wait
    if worker:
        torch.nn.init.zeros_(model.weight)  # rank 0's counts
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def train(state):
        print("train", worker, hvd.rank(), hvd.size(), state.step, flush=True)
        while state.step < 30:
            if state.step == 12 and hvd.size() == 2 and worker < 2:
                fault(plan, worker)
            if state.step == 20 and hvd.size() != int(sys.argv[2]):
                state.commit()
                time.sleep(0.05)  # until hosts have changed
                continue
            loss = step(model, optimizer, state.step)
            if hvd.rank() == 0:
                print("loss", state.step, loss, flush=True)
            state.step += 1
            if state.step % 5 == 0:
                state.commit()
        return loss

    loss = train(state)
    print("end", worker, hvd.size(), loss, model.weight.tolist(), flush=True)

if __name__ == "__main__":
    main(sys.argv[1])
"""


class Elastic:
    """A launcher, whose output is in files, and its hosts."""

    def __init__(self, folder: Path, hosts: str, plan: str, wanted_size: int, *flags: str) -> None:
        self._folder = folder
        self.set_hosts(hosts)
        (folder / "discover").write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
        (folder / "discover").chmod(0o755)
        (folder / "train.py").write_text(TRAIN)
        script = [sys.executable, str(folder / "train.py"), plan, str(wanted_size)]
        discovery = ["--host-discovery-script", str(folder / "discover")]
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [*RUN, "-np", "2", *START, *discovery, *flags, *script], stdout=out, stderr=err
            )

    def set_hosts(self, lines: str) -> None:
        (self._folder / "new").write_text(lines)
        (self._folder / "new").rename(self._folder / "hosts")

    @property
    def stdout(self) -> str:
        return (self._folder / "out").read_text()

    @property
    def stderr(self) -> str:
        return (self._folder / "err").read_text()

    def wait_for(self, line: str) -> None:
        def has_come() -> bool:
            assert self.process.poll() in (None, 0), self.stderr
            return line in self.stdout

        wait_until(has_come, line)

    def check_result(self, size: int) -> None:
        """The losses of all steps, and the weights, are those of one process."""
        assert self.process.wait(PATIENCE_SECONDS) == 0, self.stderr
        namespace: dict[str, object] = {"__name__": "train"}
        exec(TRAIN, namespace)
        model, optimizer = namespace["model_and_optimizer"]()  # type: ignore[operator]
        curve = [(int(n), float(loss)) for n, loss in re.findall(r"loss (\d+) (\S+)", self.stdout)]
        losses = [namespace["step"](model, optimizer, number) for number in range(30)]  # type: ignore[operator]
        assert {number for number, _ in curve} == set(range(30))
        for number, loss in curve:  # steps after the last commit come twice
            assert loss == pytest.approx(losses[number], rel=1e-3)
        ends = re.findall(r"end \d+ (\d+) (\S+) \[\[(.*)\]\]", self.stdout)
        assert len(ends) == size
        for found_size, found_loss, weights in ends:
            assert int(found_size) == size
            assert float(found_loss) == pytest.approx(losses[-1], rel=1e-3)
            found = torch.tensor([float(one) for one in weights.split(",")])
            torch.testing.assert_close(found, model.weight.detach()[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("plan", "hosts", "more_hosts"),
    [
        ("kill", "localhost:2\n", "localhost:2\n127.0.0.1\n"),
        ("kill in shared memory", "localhost:2\n", "localhost:2\n127.0.0.1\n"),
        ("kill in exchange between hosts", "localhost\n127.0.0.1\n", "localhost\n127.0.0.1:2\n"),
        ("stop", "localhost:2\n", "localhost:2\n127.0.0.1\n"),
    ],
)
def test_a_lost_rank_is_replaced_on_a_new_host(
    tmp_path: Path, plan: str, hosts: str, more_hosts: str
) -> None:
    flags = ["--stall-check-shutdown-time-seconds", "4"] if plan == "stop" else []
    job = Elastic(tmp_path, hosts, plan, 2, "--min-np", "1", "--max-np", "2", *flags)
    job.wait_for("train 0 0 1 10")  # alone, from the last commit
    job.set_hosts(more_hosts)
    job.wait_for("train 2 1 2 20")
    job.check_result(2)
    host = hosts.split()[-1].partition(":")[0]
    assert f"horovodrun: worker 1 on host {host} failed with exit code 137" in job.stderr
    assert ("horovodrun: worker 1 on host localhost is silent" in job.stderr) == (plan == "stop")


def test_a_host_leaves(tmp_path: Path) -> None:
    job = Elastic(tmp_path, "127.0.0.1:1\nlocalhost:1\n", "leave", 1, "--min-np", "1")
    job.wait_for("train 1 1 2 0")
    job.set_hosts("localhost:1\n")
    job.wait_for("train 1 0 1 ")
    job.check_result(1)


def test_too_few_ranks_end_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    result = subprocess.run(
        [
            *RUN,
            "-np",
            "2",
            "--min-np",
            "2",
            sys.executable,
            str(tmp_path / "train.py"),
            "kill",
            "2",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=os.environ,
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "horovodrun: 1 ranks are left, --min-np is 2; "
        "worker 1 on host localhost failed with exit code 137 (SIGKILL)"
    )


def test_a_later_host_is_told_an_address_that_it_reaches(tmp_path: Path) -> None:
    """The first host is this one, whose workers use the loopback address."""
    (tmp_path / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "wait").write_text(
        f'#!/bin/sh\necho "$HOROVOD_GLOO_RENDEZVOUS_ADDR" > {tmp_path}/$HOROVOD_HOSTNAME.new\n'
        f"mv {tmp_path}/$HOROVOD_HOSTNAME.new {tmp_path}/at.$HOROVOD_HOSTNAME\n"
        "exec sleep 600\n"
    )
    (tmp_path / "discover").write_text(
        f"#!/bin/sh\necho localhost\n[ ! -e {tmp_path}/at.localhost ] || echo 198.51.100.7\n"
    )
    for name in ("wait", "discover"):
        (tmp_path / name).chmod(0o755)
    flags = ["-np", "1", "--max-np", "2", "--host-discovery-script", str(tmp_path / "discover")]
    process = subprocess.Popen(
        [*RUN, *flags, str(tmp_path / "wait")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    try:
        wait_until((tmp_path / "at.198.51.100.7").exists, "the second worker")
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
    assert (tmp_path / "at.localhost").read_text() == "127.0.0.1\n"
    assert not (tmp_path / "at.198.51.100.7").read_text().startswith("127.")
