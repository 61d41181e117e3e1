"""What launchers' environments say about a rank, and what is wrong with bad ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_train.cluster.launch import Launch, detect, environments
from taco_train.cluster.ranks import place
from taco_train.cluster.store import RendezvousError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
HOROVODRUN = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_HOSTNAME": "gpu2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_torchrun() -> None:
    assert detect(TORCHRUN) == Launch(
        launcher="torchrun",
        rank=3,
        size=4,
        local_rank=1,
        local_size=2,
        address="10.0.0.1",
        port=29500,
        has_store=True,
        attempt=2,
        group="1",
    )


def test_horovodrun_serves_the_store() -> None:
    assert detect(HOROVODRUN) == Launch(
        launcher="horovodrun",
        rank=3,
        size=4,
        local_rank=1,
        local_size=2,
        cross_rank=1,
        cross_size=2,
        address="10.0.0.1",
        port=4000,
        has_store=True,
        group="gpu2",
    )


def test_mpirun_says_no_address() -> None:
    launch = detect(MPIRUN)
    assert launch == Launch(launcher="mpirun", rank=3, size=4, local_rank=1, local_size=2)
    given_address = detect({**MPIRUN, "MASTER_ADDR": "gpu1", "MASTER_PORT": "1234"})
    assert (given_address.address, given_address.port) == ("gpu1", 1234)


def test_inner_launchers_win() -> None:
    assert detect({**MPIRUN, **TORCHRUN}).launcher == "torchrun"
    assert detect({**MPIRUN, **TORCHRUN, **HOROVODRUN}).launcher == "horovodrun"


def test_without_a_launcher_there_is_one_rank() -> None:
    assert detect({"TACO_TRAIN_HOST": "a"}) == Launch(host="a")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "RANK is set but WORLD_SIZE is not: set both or neither"),
        ({"HOROVOD_SIZE": "2"}, "HOROVOD_SIZE is set but HOROVOD_RANK is not"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK is '-1'; it must be an integer of at least 0"),
        ({**TORCHRUN, "RANK": "4"}, "RANK is 4; it must be less than WORLD_SIZE, which is 4"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "LOCAL_RANK is 2; it must be less than LOCAL_WORLD_SIZE"),
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE is 0; it must be at least"),
        ({**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT is 65536; it must be from 1 to 65535"),
        ({**TORCHRUN, "MASTER_PORT": ""}, "MASTER_PORT is ''; it must be an integer"),
        ({**MPIRUN, "MASTER_ADDR": "gpu1"}, "MASTER_ADDR is set but MASTER_PORT is not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE is set but MASTER_ADDR and MASTER_PORT"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "are not: start the ranks with horovodrun"),
    ],
)
def test_bad_variables_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(RendezvousError) as raised:
        detect(environment)
    assert message in str(raised.value)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_what_is_written_is_read(hosts: list[str]) -> None:
    for rank, environment in enumerate(environments(hosts, "h", 1, launcher="ray")):
        launch, placement = detect(environment), place(rank, hosts)
        assert (launch.launcher, launch.rank, launch.size) == ("ray", rank, len(hosts))
        assert (launch.local_rank, launch.local_size, launch.host) == (
            placement.local_rank,
            placement.local_size,
            hosts[rank],
        )
