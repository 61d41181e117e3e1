"""`horovodrun --min-np`: a job continues after a rank is lost, and takes a new host in."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from support.forked_program import ForkedProgram
from support.patience import PATIENCE_SECONDS, wait_until
from taco_train.lightcc.launcher.main import main as horovodrun

pytestmark = [pytest.mark.process, pytest.mark.slow]
# The first round waits for both workers, also on a busy machine.
START = ["--start-timeout", str(PATIENCE_SECONDS)]
# Ranks have equal batches, so that the result does not depend on their number.
TRAIN = """
import os, signal, sys, threading, time
import torch
import taco_train.lightcc.horovod.torch as hvd
from taco_train.lightcc.horovod.state import current

class Descent:  # in jobs that are not about torch's optimizers, which import much
    def __init__(self, model):
        self.model = model

    def zero_grad(self):
        self.model.zero_grad()

    def step(self):
        for name, one in self.model.named_parameters():
            mean = hvd.allreduce(one.grad, name=name) if hvd.is_initialized() else one.grad
            one.data -= 0.05 * mean

def model_and_optimizer(kind):
    torch.manual_seed(3)
    model = torch.nn.Linear(5, 1)
    if kind == "descent":
        return model, Descent(model)
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

def fault(plan, is_victim):
    number = signal.SIGSTOP if plan == "stop" else signal.SIGKILL
    if is_victim and plan in ("kill", "stop"):
        os.kill(os.getpid(), number)
    if is_victim and plan.startswith("kill in "):
        stage = plan.removeprefix("kill in ")
        threading.Thread(target=signal_in, args=(stage, number), daemon=True).start()
    while plan.startswith("kill in "):  # the others notice there
        hvd.allreduce(torch.ones(2_000_000), name="long")

def main(kind, plans, sizes):
    # Worker 1 has the first fault at step 17, worker 2 the next at step 27 ...; at step 20, 30 ...
    # ranks wait until they are as many as they are to be.
    faults = {17 + 10 * index: plan for index, plan in enumerate(plans)}
    waits = {20 + 10 * index: int(size) for index, size in enumerate(sizes)}
    worker = int(os.environ["HOROVOD_ELASTIC_WORKER"])
    model, optimizer = model_and_optimizer(kind)  # this imports much: not while others wait
    if worker:
        torch.nn.init.zeros_(model.weight)  # rank 0's counts
    hvd.init()
    if kind == "descent":
        state = hvd.elastic.TorchState(model=model, step=0)
    else:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def train(state):
        assert os.environ["HOROVOD_RANK"] == str(hvd.rank())
        assert os.environ["HOROVOD_SIZE"] == str(hvd.size())
        print("train", worker, hvd.rank(), hvd.size(), state.step, flush=True)
        while state.step < 10 + max(waits):
            if state.step in faults and hvd.size() == 2:
                fault(faults[state.step], worker == (state.step - 7) // 10)
            if hvd.size() != waits.get(state.step, hvd.size()):
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
    main(sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(","))
"""


class Elastic:
    """A launcher, whose output is in files, and its hosts.

    Args:
        kind: of the optimizer: that of torch, or descent.
        plans: the faults, as the script has them.
        sizes: numbers of ranks to wait for after each.
    """

    def __init__(
        self,
        folder: Path,
        hosts: str,
        kind: str,
        plans: list[str],
        sizes: list[int],
        *flags: str,
    ) -> None:
        self._folder, self._kind, self._steps = folder, kind, 20 + 10 * len(sizes)
        self.set_hosts(hosts)
        (folder / "discover").write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
        (folder / "discover").chmod(0o755)
        (folder / "train.py").write_text(TRAIN)
        script = [sys.executable, str(folder / "train.py")]
        script += [kind, ",".join(plans), ",".join(map(str, sizes))]
        discovery = ["--host-discovery-script", str(folder / "discover")]
        limits = ["-np", "2", "--min-np", "1", "--max-np", "2"]
        self.launcher = ForkedProgram(
            horovodrun, *limits, *START, *discovery, *flags, *script, folder=folder
        )

    def set_hosts(self, lines: str) -> None:
        (self._folder / "new").write_text(lines)
        (self._folder / "new").rename(self._folder / "hosts")

    def wait_for(self, line: str) -> None:
        def has_come() -> bool:
            assert self.launcher.exit_code in (None, 0), self.launcher.stderr
            return line in self.launcher.stdout

        wait_until(has_come, line)

    def check_result(self, size: int) -> None:
        """The losses of all steps, and the weights, are those of one process."""
        assert self.launcher.wait() == 0, self.launcher.stderr
        stdout = self.launcher.stdout
        namespace: dict[str, object] = {"__name__": "train"}
        exec(TRAIN, namespace)
        model, optimizer = namespace["model_and_optimizer"](self._kind)  # type: ignore[operator]
        curve = [(int(n), float(loss)) for n, loss in re.findall(r"loss (\d+) (\S+)", stdout)]
        numbers = range(self._steps)
        losses = [namespace["step"](model, optimizer, number) for number in numbers]  # type: ignore[operator]
        assert {number for number, _ in curve} == set(numbers)
        for number, loss in curve:  # steps after the last commit come twice
            assert loss == pytest.approx(losses[number], rel=1e-3)
        ends = re.findall(r"end \d+ (\d+) (\S+) \[\[(.*)\]\]", stdout)
        assert len(ends) == size
        for found_size, found_loss, weights in ends:
            assert int(found_size) == size
            assert float(found_loss) == pytest.approx(losses[-1], rel=1e-3)
            found = torch.tensor([float(one) for one in weights.split(",")])
            torch.testing.assert_close(found, model.weight.detach()[0], rtol=1e-4, atol=1e-5)


def test_killed_ranks_are_replaced(tmp_path: Path) -> None:
    """On a new host, and in a new slot of a host; in shared memory, between hosts, and at work."""
    plans = ["kill in shared memory", "kill in exchange between hosts", "kill"]
    job = Elastic(tmp_path, "localhost:2\n", "descent", plans, [2, 2, 2])
    for number in (1, 2, 3):
        job.wait_for(f"train 0 0 1 {10 * number + 5}\n")  # alone, from the last commit
        job.set_hosts(f"localhost:2\n127.0.0.1:{number}\n")
        job.wait_for(f"train {number + 1} 1 2 {10 * number + 10}\n")
    job.check_result(2)
    for number, host in ((1, "localhost"), (2, "127.0.0.1"), (3, "127.0.0.1")):
        line = f"horovodrun: worker {number} on host {host} failed with exit code 137 (SIGKILL)\n"
        assert line in job.launcher.stderr
    assert "silent" not in job.launcher.stderr


def test_a_stopped_rank_is_replaced_and_a_host_leaves(tmp_path: Path) -> None:
    """The host that leaves has rank 0."""
    flags = ["--stall-check-shutdown-time-seconds", "4"]
    hosts = "127.0.0.1:1\nlocalhost:1\n"
    job = Elastic(tmp_path, hosts, "optimizer", ["stop"], [2, 1], *flags)
    job.wait_for("train 0 0 1 15\n")
    job.set_hosts("127.0.0.1:1\nlocalhost:2\n")
    job.wait_for("train 2 1 2 20\n")
    job.set_hosts("localhost:2\n")
    job.wait_for("train 2 0 1 ")
    job.check_result(1)
    stderr = job.launcher.stderr
    assert "horovodrun: worker 1 on host localhost is silent: it is ended\n" in stderr
    assert "worker 1 on host localhost failed with exit code 143 (SIGTERM)\n" in stderr


# Worker 1 is killed once all ranks are there.
KILL = """
import os, signal
import taco_train.lightcc.horovod.torch as hvd
hvd.init()
hvd.barrier()
if hvd.rank():
    os.kill(os.getpid(), signal.SIGKILL)
try:
    hvd.barrier()
except hvd.HorovodInternalError:
    hvd.shutdown()
    hvd.init()
"""


def test_too_few_ranks_end_the_job(tmp_path: Path) -> None:
    (tmp_path / "kill.py").write_text(KILL)
    command = [sys.executable, str(tmp_path / "kill.py")]
    launcher = ForkedProgram(horovodrun, "-np", "2", "--min-np", "2", *command, folder=tmp_path)
    assert launcher.wait() == 1
    assert launcher.stderr.splitlines()[-1] == (
        "horovodrun: 1 ranks are left; 2 are needed (--min-np, min_num_proc); "
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
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    launcher = ForkedProgram(
        horovodrun, *flags, tmp_path / "wait", folder=tmp_path, environment=path
    )
    try:
        wait_until((tmp_path / "at.198.51.100.7").exists, "the second worker")
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait()
    assert (tmp_path / "at.localhost").read_text() == "127.0.0.1\n"
    assert not (tmp_path / "at.198.51.100.7").read_text().startswith("127.")


def test_a_variable_that_is_wrong_ends_the_job(tmp_path: Path) -> None:
    """To connect again would not help: ranks tried without an end."""
    script = tmp_path / "start.py"
    script.write_text("import taco_train.lightcc.horovod.torch as hvd; hvd.init()")
    run = ForkedProgram(
        horovodrun,
        *("-np", "1", "--min-np", "1", *START, sys.executable, str(script)),
        folder=tmp_path,
        environment={"TACO_TRAIN_INTERFACE": "none0"},
    )
    assert run.wait() == 1
    assert "TACO_TRAIN_INTERFACE is 'none0'; it must be an interface of" in run.stderr
    assert "0 ranks are left; 1 are needed" in run.stderr
