"""Ranks find each other through a store, and say what differs where a launcher is wrong."""

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from taco_train.cluster.launch import Launch
from taco_train.cluster.ranks import Placement
from taco_train.cluster.rendezvous import Description, connect, place_all
from taco_train.cluster.store import ConfigurationError, KeyValueStore, RendezvousError


class ThreadStore:
    """A store for ranks that are threads."""

    def __init__(self, timeout: float) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._timeout = timeout

    def set(self, key: str, value: bytes | str, /) -> None:
        with self._changed:
            self._values[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def get(self, key: str, /) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, self._timeout):
                raise RendezvousError(f"no {key}")
            return self._values[key]

    def add(self, key: str, amount: int, /) -> int:
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(total).encode()
            return total


def connect_all(launches: Sequence[Launch], timeout: float = 20) -> list[Placement | str]:
    """The placement or the error of every rank."""
    store = ThreadStore(timeout)

    def open_store(
        address: str, port: int, *, serves: bool, timeout: float
    ) -> tuple[KeyValueStore, int]:
        return store, port

    def run(launch: Launch) -> Placement | str:
        launch = replace(launch, address="127.0.0.1", port=1)
        try:
            return connect(launch, {}, open_store, timeout=timeout)[0]
        except RendezvousError as error:
            return str(error)

    with ThreadPoolExecutor(len(launches)) as threads:
        return list(threads.map(run, launches))


def test_hosts_come_from_the_variable_that_names_them() -> None:
    hosts = ["a", "a", "b"]
    # The launcher sees one machine, and numbers its three ranks so; the named hosts win.
    found = connect_all(
        [
            Launch("torchrun", rank, 3, local_rank=rank, local_size=3, host=hosts[rank])
            for rank in range(3)
        ]
    )
    for rank, placement in enumerate(found):
        assert isinstance(placement, Placement)
        assert (placement.rank, placement.hosts) == (rank, ("a", "a", "b"))
        assert placement.addresses == ("127.0.0.1",) * 3


def test_two_agents_on_one_machine_are_two_hosts() -> None:
    found = connect_all(
        [Launch("torchrun", rank, 4, rank % 2, 2, group=str(rank // 2)) for rank in range(4)]
    )
    assert [(p.local_rank, p.cross_rank) for p in found if isinstance(p, Placement)] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
    ]


def test_a_launcher_that_counts_otherwise_is_told_what_differs() -> None:
    errors = connect_all([Launch("mpirun", 0, 2, 0, 1), Launch("mpirun", 1, 2, 0, 1)])
    for error in errors:
        assert isinstance(error, str)
        assert "ranks 0, 1 share host" in error
        assert "local ranks 0, 0; they must be 0 to 1" in error
        assert "set TACO_TRAIN_HOST for each rank" in error
    errors = connect_all([Launch("mpirun", 0, 2, None, 3), Launch("mpirun", 1, 2, None, 2)])
    assert str(errors[0]).startswith("rank 0: the launcher says local_size 3, but it is 2, since")


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_sizes_that_differ_are_named(sizes: tuple[int, int]) -> None:
    assert connect_all([Launch("torchrun", rank, sizes[rank]) for rank in range(2)]) == [
        f"rank 1 says that there are {sizes[1]} ranks, rank 0 says {sizes[0]}",
        f"rank 0 says that there are {sizes[0]} ranks, rank 1 says {sizes[1]}",
    ]


def test_another_version_is_named() -> None:
    store = ThreadStore(timeout=1)
    store.set("taco_train/0/0/rank/1", json.dumps({"size": 2, "new_field": 1}))
    with pytest.raises(ConfigurationError, match=r"^rank 1 has another version of taco-train than"):
        connect(
            Launch("torchrun", 0, 2, address="127.0.0.1", port=1),
            {},
            lambda *args, **options: (store, 1),
            timeout=1,
        )


def test_a_missing_rank_is_named() -> None:
    errors = connect_all([Launch("torchrun", rank, 3) for rank in range(2)], timeout=0.2)
    assert errors == [
        f"rank {rank}: rank 2 of 3 has not come within 0.2 s: no taco_train/0/0/rank/2"
        for rank in range(2)
    ]


def test_two_processes_of_one_rank_are_found() -> None:
    errors = connect_all([Launch("torchrun", 0, 2), Launch("torchrun", 0, 2)], timeout=0.2)
    assert "two processes call themselves rank 0: every process needs another rank" in errors


def test_an_interface_that_does_not_exist() -> None:
    """Else ranks would take another network, which may be slow."""
    environment = {"TACO_TRAIN_INTERFACE": "none0", "GLOO_SOCKET_IFNAME": "lo"}
    with pytest.raises(RendezvousError, match=r"TACO_TRAIN_INTERFACE is 'none0'; it must .* lo"):
        connect(Launch(), environment, no_store, timeout=1)
    connect(Launch(), {"HOROVOD_GLOO_IFACE": "none0,lo"}, no_store, timeout=1)


def no_store(address: str, port: int, *, serves: bool, timeout: float) -> tuple[KeyValueStore, int]:
    raise AssertionError("a single rank needs none")


def describe(key: str, address: str, store_address: str, label: str = "node") -> Description:
    return Description(3, key, label, None, None, None, None, address, store_address)


def test_hosts_of_one_name_are_told_apart() -> None:
    said = [describe(key, "10.0.0.1", "10.0.0.1") for key in ("x", "y", "x")]
    assert place_all(said)[2].hosts == ("node#1", "node#2", "node#1")


def test_ranks_beside_the_store_get_the_address_that_others_reach() -> None:
    said = [
        describe("x", "127.0.0.1", "127.0.0.1"),
        describe("x", "127.0.0.1", "127.0.0.1"),
        describe("y", "10.0.0.2", "10.0.0.1"),
    ]
    assert place_all(said)[0].addresses == ("10.0.0.1", "10.0.0.1", "10.0.0.2")
