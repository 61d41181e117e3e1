"""Emulated hosts: rate, delay, loss, paths and counters of their links, and what is left behind."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from support.patience import PATIENCE_SECONDS, wait_until
from taco_train.cluster.emulation.emulator import EmulatedHosts, emulate
from taco_train.cluster.emulation.fabric import (
    Fabric,
    loss_program,
    parse_delay,
    parse_loss,
    parse_rate,
)
from taco_train.cluster.emulation.init import EmulationError
from taco_train.cluster.emulation.run import run_ranks

pytestmark = pytest.mark.process

HEADERS = 1.08  # Ethernet, IP and TCP headers, acknowledgements, ARP

# Sends bytes over one connection from host 0 to host 1, and prints how long it took.
TRANSFER = """
import os, socket, time
size, rank = SIZE, int(os.environ["RANK"])
if rank == 1:
    server = socket.create_server(("", 5000))
    print("listens", flush=True)
    connection, _ = server.accept()
    begun, received = time.monotonic(), 0
    while received < size:
        received += len(connection.recv(1 << 20))
    connection.sendall(b"!")
    print(time.monotonic() - begun)
else:
    while True:
        try:
            connection = socket.create_connection(("host1", 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    connection.sendall(bytes(size))
    assert connection.recv(1) == b"!"
"""
# Sends 4000 datagrams to host 1, from as many ports.
DATAGRAMS = """
import socket
target = ("10.77.1.2", 5001)
for number in range(COUNT):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("", 10000 + number))
        sender.sendto(bytes(100), target)
"""


def run_python(
    hosts: EmulatedHosts, script: str, *, ranks_per_host: int = 1
) -> tuple[list[int], str, str]:
    """Exit codes of all ranks, and their output."""
    out, err = io.BytesIO(), io.BytesIO()
    codes = run_ranks(hosts, [sys.executable, "-c", script], ranks_per_host, stdout=out, stderr=err)
    return codes, out.getvalue().decode(), err.getvalue().decode()


def send_datagrams(hosts: EmulatedHosts, count: int) -> None:
    script = DATAGRAMS.replace("COUNT", str(count))
    assert hosts.start(0, [sys.executable, "-c", script]).wait(PATIENCE_SECONDS) == 0


@pytest.fixture(scope="module")
def slow_hosts() -> Iterator[EmulatedHosts]:
    with emulate(Fabric(hosts=2, rate=200e6)) as hosts:
        yield hosts


def test_bytes_are_counted_and_the_rate_is_a_limit(slow_hosts: EmulatedHosts) -> None:
    size = 5_000_000
    before = slow_hosts.counters()
    codes, output, errors = run_python(slow_hosts, TRANSFER.replace("SIZE", str(size)))
    assert codes == [0, 0], errors
    after = slow_hosts.counters()
    for sent in (
        after[0].sent_bytes - before[0].sent_bytes,
        after[1].received_bytes - before[1].received_bytes,
    ):
        assert size <= sent <= size * HEADERS
    assert after[1].sent_bytes - before[1].sent_bytes < size * (HEADERS - 1)
    seconds = float(output.rpartition("[1] ")[2])
    assert size * 8 / seconds < 1.1 * 200e6


def test_the_rate_can_be_changed(slow_hosts: EmulatedHosts) -> None:
    size = 500_000
    slow_hosts.set_rate(20e6)
    codes, output, errors = run_python(slow_hosts, TRANSFER.replace("SIZE", str(size)))
    slow_hosts.set_rate(200e6)
    assert codes == [0, 0], errors
    assert size * 8 / float(output.rpartition("[1] ")[2]) < 1.1 * 20e6


def test_ranks_have_names_and_variables(slow_hosts: EmulatedHosts) -> None:
    script = """
import os, socket
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TACO_TRAIN_HOST", "MASTER_ADDR")
host = socket.gethostname()
address = socket.gethostbyname(host)
# As torch's store asks for the name of a connection.
named = socket.getnameinfo(("::ffff:" + address, 1, 0, 0), socket.NI_NAMEREQD)[0]
print(*map(os.environ.get, names), host, address, named)
"""
    codes, output, _ = run_python(slow_hosts, script, ranks_per_host=2)
    assert codes == [0] * 4
    assert sorted(output.splitlines()) == [
        "[0] 0 0 4 host0 10.77.0.2 host0 10.77.0.2 host0.mapped",
        "[1] 1 1 4 host0 10.77.0.2 host0 10.77.0.2 host0.mapped",
        "[2] 2 0 4 host1 10.77.0.2 host1 10.77.1.2 host1.mapped",
        "[3] 3 1 4 host1 10.77.0.2 host1 10.77.1.2 host1.mapped",
    ]


def test_a_cut_host_loses_everything(slow_hosts: EmulatedHosts) -> None:
    send_datagrams(slow_hosts, 1)  # both know each other's link address now
    before = slow_hosts.counters()[1].received_packets
    slow_hosts.cut(0)
    send_datagrams(slow_hosts, 50)
    assert slow_hosts.counters()[1].received_packets == before
    slow_hosts.restore(0)
    send_datagrams(slow_hosts, 50)
    wait_until(
        lambda: slow_hosts.counters()[1].received_packets >= before + 50, "packets after restore"
    )


def test_a_rank_that_fails_ends_the_others(slow_hosts: EmulatedHosts) -> None:
    script = """
import os, signal, sys
if os.environ["RANK"] == "1":
    sys.exit("broken")
signal.pause()
"""
    codes, _, errors = run_python(slow_hosts, script)
    assert codes == [-signal.SIGTERM, 1]
    assert errors == "[1] broken\n"


def test_processes_are_seen_and_signalled_from_outside(slow_hosts: EmulatedHosts) -> None:
    process = slow_hosts.start(1, ["sleep", "1000"])
    assert psutil.Process(process.pid).cmdline() in (["sleep", "1000"], [])
    assert process.poll() is None
    with pytest.raises(TimeoutError):
        process.wait(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    with pytest.raises(EmulationError, match="no-such-program cannot be started"):
        slow_hosts.start(0, ["no-such-program"])


def test_loss_takes_its_share() -> None:
    with emulate(Fabric(hosts=2, loss=0.1)) as hosts:
        send_datagrams(hosts, 4000)
        counted = hosts.counters()[0]
        lost = counted.sent_packets - hosts.counters()[1].received_packets
    assert 4000 <= counted.sent_packets < 4010
    assert 280 < lost < 520  # six standard deviations around 400


def test_delay_is_what_was_asked_for() -> None:
    script = """
import os, socket, time
if os.environ["RANK"] == "1":
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("", 5002))
    for _ in range(3):
        data, sender = server.recvfrom(10)
        server.sendto(data, sender)
else:
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(0.2)
    received = 0
    while received < 3:
        begun = time.monotonic()
        client.sendto(b"ping", ("host1", 5002))
        try:
            client.recv(10)
        except TimeoutError:
            continue
        received += 1
        print(time.monotonic() - begun)
"""
    with emulate(Fabric(hosts=2, delay=0.02)) as hosts:
        codes, output, errors = run_python(hosts, script)
        assert codes == [0, 0], errors
        round_trips = [float(line.partition("] ")[2]) for line in output.splitlines()]
        assert len(round_trips) == 3
        assert 0.04 <= min(round_trips) < 0.075
        # Large packets pass the relay, too.
        codes, _, errors = run_python(hosts, TRANSFER.replace("SIZE", "3_000_000"))
        assert codes == [0, 0], errors


# Host 1 echoes the first datagram, then prints the numbers of those that follow.
NUMBERED = """
import os, socket
count = COUNT
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["RANK"] == "1":
    end.bind(("", 5003))
    data, sender = end.recvfrom(10)
    end.sendto(data, sender)
    while data == b"first":
        data, _ = end.recvfrom(10)
    numbers = [int(data)]
    end.settimeout(5.0)
    while numbers[-1] < count - 1:
        numbers.append(int(end.recv(10)))
    print(*numbers)
else:
    end.settimeout(0.2)
    while True:
        end.sendto(b"first", ("host1", 5003))
        try:
            end.recv(10)
            break
        except TimeoutError:
            pass
    for number in range(count):
        end.sendto(b"%d" % number, ("host1", 5003))
"""


def test_delayed_packets_all_come_in_order() -> None:
    count = 150
    with emulate(Fabric(hosts=2, delay=0.005)) as hosts:
        codes, output, errors = run_python(hosts, NUMBERED.replace("COUNT", str(count)))
    assert codes == [0, 0], errors
    assert output.split()[1:] == [str(number) for number in range(count)]


def test_ports_choose_among_equal_paths() -> None:
    with emulate(Fabric(hosts=2, paths=4)) as hosts:
        send_datagrams(hosts, 200)
        paths = hosts.counters()[0].paths
        assert len(paths) == 4
        assert all(sent > 142 * 10 for sent in paths)
        # One connection stays on one path.
        before = paths
        codes, _, errors = run_python(hosts, TRANSFER.replace("SIZE", "1_000_000"))
        assert codes == [0, 0], errors
        paths = hosts.counters()[0].paths
        used = [now - then for now, then in zip(paths, before, strict=True)]
        assert sorted(sent > 10_000 for sent in used) == [False, False, False, True]


OWNER = """
import os, sys
from taco_train.cluster.emulation.emulator import emulate
from taco_train.cluster.emulation.fabric import Fabric
with emulate(Fabric(hosts=2, delay=0.001)) as hosts:
    # A rank, and a process in another session that it leaves behind.
    process = hosts.start(0, ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"])
    print(process.pid, flush=True)
    process.wait()
"""


@pytest.mark.parametrize("victim", ["owner", "first process"])
def test_nothing_is_left_after_kill_9(victim: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        parent = psutil.Process(owner.pid)
        wait_until(
            lambda: (
                sum("sleep" in _command(child) for child in parent.children(recursive=True)) == 2
            ),
            "the processes on the host",
        )
        family = parent.children(recursive=True)
        assert len(family) == 5  # the fork, the first process, its relay, and two on the host
        first = family[1]
        assert first.ppid() == family[0].pid
        os.kill(owner.pid if victim == "owner" else first.pid, signal.SIGKILL)
        owner.wait(PATIENCE_SECONDS)
    wait_until(lambda: not any(_lives(process) for process in family), "the end of all processes")


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, every other test shows it")
def test_without_root_hosts_are_those_of_a_user_namespace() -> None:
    script = OWNER.replace("sleep 1000", "true").replace("& exec", "& wait; exec")
    result = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin,-net_admin", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert result.returncode == 0, result.stderr


def test_a_kernel_that_forbids_namespaces_gives_one_line() -> None:
    forbid = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    result = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"),
            *(sys.executable, "-m", "taco_train.cli", "emulate", "--", "true"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(
        "taco_train emulate: error: the kernel forbids namespaces (unshare: No space left on "
    )


def test_units() -> None:
    assert parse_rate("200mbit") == 200e6
    assert parse_rate("1.5Gbit") == 1.5e9
    assert parse_delay("500us") == pytest.approx(5e-4)
    assert parse_loss("1%") == pytest.approx(0.01)
    for parse, text in (
        (parse_rate, "200"),
        (parse_rate, "mbit"),
        (parse_delay, "5"),
        (parse_loss, "0.01"),
        (parse_rate, "-1mbit"),
    ):
        with pytest.raises(ValueError, match="is not a"):
            parse(text)


@pytest.mark.parametrize(
    "bad",
    [{"hosts": 0}, {"hosts": 201}, {"paths": 0}, {"rate": 10.0}, {"delay": -1.0}, {"loss": 1.5}],
)
def test_what_cannot_be_emulated_is_rejected(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"can be emulated|must be from 0 to 1"):
        Fabric(**bad)  # type: ignore[arg-type]


def test_loss_programs() -> None:
    assert loss_program(0) == "1,6 0 0 0"
    assert loss_program(1) == "1,6 0 0 2"
    assert loss_program(0.5).split(",")[2] == f"53 0 1 {1 << 31}"
