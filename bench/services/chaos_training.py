"""How long ranks of a training job need until they raise an error when another is lost.

Two emulated hosts have two ranks each. In every run one fault happens; every rank that is left
prints when it has `HorovodInternalError`. The row of an elastic job has the time from the loss of
a rank to the next step of the other. `make chaos` runs it after the serving part. It needs the
right to create network namespaces, and iproute2's `ip` and `tc`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.record import save
from taco_train.cluster.emulation.emulator import EmulatedHosts, EmulatedProcess, emulate
from taco_train.cluster.emulation.fabric import Fabric

VICTIM = 3
# Seconds; the limits of a rank that is silent, not gone.
LIMITS = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"}
# While it negotiates, the victim does not submit what the others wait for.
RANK = """
import sys, threading, time
import torch
import taco_train.lightcc.horovod.torch as hvd
hvd.init()
tensor = torch.ones(4_000_000)
hvd.allreduce(tensor, name="warm")
print("ready", flush=True)
try:
    if sys.argv[1] == "negotiating":
        if hvd.rank() == int(sys.argv[2]):
            threading.Event().wait()
        hvd.allreduce(tensor, name="waits")
    while True:
        hvd.allreduce_(tensor.fill_(1.0), name="long")
except hvd.HorovodInternalError:
    print(f"{time.monotonic()}\\n", end="", flush=True)
"""
ELASTIC = """
import os, signal, time
import torch
import taco_train.lightcc.horovod.torch as hvd
model = torch.nn.Linear(1000, 1000)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    while state.step < 40:
        if state.step == 25 and os.environ["HOROVOD_ELASTIC_WORKER"] == "1":
            print("lost", time.monotonic(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(8, 1000)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        print("step", time.monotonic(), flush=True)

train(state)
"""
Fault = Callable[[EmulatedHosts, EmulatedProcess], None]


def send(number: signal.Signals) -> Fault:
    return lambda hosts, victim: victim.send_signal(number)


def cut(hosts: EmulatedHosts, victim: EmulatedProcess) -> None:
    hosts.cut(1)


FAULTS: dict[str, tuple[str, Fault, int]] = {
    # what the ranks do, what happens, and how many ranks then raise
    "kill -9 while ranks negotiate": ("negotiating", send(signal.SIGKILL), 3),
    "kill -9 in a collective": ("reducing", send(signal.SIGKILL), 3),
    "SIGSTOP while ranks negotiate, limit 5 s": ("negotiating", send(signal.SIGSTOP), 3),
    "SIGSTOP in a collective, limit 5 s": ("reducing", send(signal.SIGSTOP), 3),
    "link cut while ranks negotiate": ("negotiating", cut, 3),
    "link cut in a collective": ("reducing", cut, 4),
}


def measure(name: str) -> list[float]:
    """Seconds from a fault to the error of each rank that is left."""
    what, fault, num_ranks = FAULTS[name]
    reader, writer = os.pipe()
    with emulate(Fabric(hosts=2, rate=1e9)) as hosts, os.fdopen(reader) as output:
        processes = [
            hosts.start(
                rank // 2,
                [sys.executable, "-c", RANK, what, str(VICTIM)],
                environment=environment | (LIMITS if "SIGSTOP" in name else {}),
                stdout=writer,
            )
            for rank, environment in enumerate(hosts.environments(2))
        ]
        os.close(writer)
        for _ in processes:
            output.readline()
        time.sleep(1.0)  # until they wait, or are between the first and the last of many sums
        begun = time.monotonic()
        fault(hosts, processes[VICTIM])
        return [float(output.readline()) - begun for _ in range(num_ranks)]


def measure_elastic() -> list[float]:
    """Seconds from the loss of a rank to the next step of the one that is left."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(ELASTIC)
        command = [sys.executable, "-m", "taco_train.lightcc.launcher.main", "-np", "2"]
        result = subprocess.run(
            [*command, "--min-np", "1", sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=True,
        )
    lines = [line.partition(">:")[2].split() for line in result.stdout.splitlines()]
    (lost,) = [float(at) for what, at in lines if what == "lost"]
    return [min(float(at) for what, at in lines if what == "step" and float(at) > lost) - lost]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--save", action="store_true", help="Write bench/results/chaos_training.json."
    )
    parser.add_argument("--runs", type=int, default=3, help="Runs of each fault (default 3).")
    options = parser.parse_args()
    rows = {}
    print(f"{'fault':48} {'ranks':>6} {'p50 s':>8} {'max s':>8}")
    measures: dict[str, Callable[[], list[float]]] = {
        name: lambda name=name: measure(name)  # type: ignore[misc]
        for name in FAULTS
    }
    measures["elastic: kill -9, until the next step"] = measure_elastic
    for name, one in measures.items():
        seconds = [second for _ in range(options.runs) for second in one()]
        rows[name] = {
            "ranks": len(seconds),
            "p50_s": round(float(np.median(seconds)), 3),
            "max_s": round(max(seconds), 3),
        }
        row = rows[name]
        print(f"{name:48} {row['ranks']:6} {row['p50_s']:8.2f} {row['max_s']:8.2f}", flush=True)
    if options.save:
        print(save("chaos_training", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
