"""What a launcher tells the ranks that it starts: its environment variables, read and written.

| launcher | variables |
|---|---|
| torchrun | RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT |
| horovodrun | HOROVOD_RANK, HOROVOD_SIZE, ..., HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT |
| mpirun (Open MPI) | OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, ...; the address by PMIx |
| Ray, `taco_train emulate` | those of torchrun, and TACO_TRAIN_LAUNCHER |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taco_train.cluster.ranks import place
from taco_train.cluster.store import ConfigurationError

HOST_VARIABLE = "TACO_TRAIN_HOST"
LAUNCHER_VARIABLE = "TACO_TRAIN_LAUNCHER"
MAX_PORT = 65535


@dataclass(frozen=True)
class Launch:
    """What this rank's environment says.

    Attributes:
        launcher: `torchrun`, `horovodrun`, `mpirun`, `ray`, `emulate`, or `none`: a single rank.
        rank, size: number of this rank, and of all.
        local_rank, local_size, cross_rank, cross_size: as in Placement; None where not said.
        address, port: of the store; None where rank 0 must tell the others (mpirun).
        has_store: the launcher serves the store there; otherwise rank 0 does.
        attempt: how often the launcher has started the ranks again.
        group: the launcher's own name of this rank's host; ranks of two groups share no host.
        host: TACO_TRAIN_HOST; ranks share a host where it is equal, whatever else is.
    """

    launcher: str = "none"
    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    local_size: int | None = None
    cross_rank: int | None = None
    cross_size: int | None = None
    address: str | None = None
    port: int | None = None
    has_store: bool = False
    attempt: int = 0
    group: str = ""
    host: str = ""


def detect(environment: Mapping[str, str]) -> Launch:
    """Finds out which launcher started this process, and what it says.

    Where variables of several launchers are set, horovodrun's win over torchrun's, and those over
    mpirun's, since either may have been started by mpirun.

    Raises:
        ConfigurationError: a variable is missing, is no number, or contradicts another one.
    """
    variables = _Variables(environment)
    if "HOROVOD_RANK" in environment or "HOROVOD_SIZE" in environment:
        return _horovodrun(variables)
    if "RANK" in environment or "WORLD_SIZE" in environment:
        return _torchrun(variables)
    if "OMPI_COMM_WORLD_RANK" in environment or "OMPI_COMM_WORLD_SIZE" in environment:
        return _mpirun(variables)
    return Launch(host=variables.text(HOST_VARIABLE))


def environments(
    hosts: list[str], address: str, port: int, *, launcher: str = "torchrun"
) -> list[dict[str, str]]:
    """The variables that a launcher sets for each rank, in torchrun's words; `detect` reads them.

    Args:
        hosts: host of every rank, by rank; becomes TACO_TRAIN_HOST.
        address, port: where rank 0 serves the store.
        launcher: what `detect` shall call the launcher.
    """
    names = list(dict.fromkeys(hosts))
    made = []
    for rank in range(len(hosts)):
        placement = place(rank, hosts)
        made.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "LOCAL_RANK": str(placement.local_rank),
                "LOCAL_WORLD_SIZE": str(placement.local_size),
                "GROUP_RANK": str(names.index(placement.host)),
                "GROUP_WORLD_SIZE": str(len(names)),
                "ROLE_RANK": str(rank),
                "ROLE_WORLD_SIZE": str(len(hosts)),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                HOST_VARIABLE: placement.host,
                LAUNCHER_VARIABLE: launcher,
            }
        )
    return made


def _torchrun(variables: _Variables) -> Launch:
    rank, size = variables.rank_of("RANK", "WORLD_SIZE")
    local_rank, local_size = variables.local_rank_of("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    address, port = variables.address_of("MASTER_ADDR", "MASTER_PORT")
    if address is None and size > 1:
        raise ConfigurationError(
            "WORLD_SIZE is set but MASTER_ADDR and MASTER_PORT are not: set them to the host of "
            "rank 0 and a free port there, or start the ranks with torchrun"
        )
    return Launch(
        launcher=variables.text(LAUNCHER_VARIABLE) or "torchrun",
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        address=address,
        port=port,
        has_store=variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=variables.number("TORCHELASTIC_RESTART_COUNT") or 0,
        group=variables.text("GROUP_RANK"),
        host=variables.text(HOST_VARIABLE),
    )


def _horovodrun(variables: _Variables) -> Launch:
    rank, size = variables.rank_of("HOROVOD_RANK", "HOROVOD_SIZE")
    local_rank, local_size = variables.local_rank_of("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
    cross_rank, cross_size = variables.local_rank_of("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    address, port = variables.address_of(
        "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
    )
    has_store = address is not None
    if address is None:
        address, port = variables.address_of("MASTER_ADDR", "MASTER_PORT")
    if address is None and size > 1:
        raise ConfigurationError(
            "HOROVOD_SIZE is set but HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT "
            "are not: start the ranks with horovodrun, or set MASTER_ADDR and MASTER_PORT to the "
            "host of rank 0 and a free port there"
        )
    return Launch(
        launcher="horovodrun",
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=cross_rank,
        cross_size=cross_size,
        address=address,
        port=port,
        has_store=has_store,
        group=variables.text("HOROVOD_HOSTNAME"),
        host=variables.text(HOST_VARIABLE),
    )


def _mpirun(variables: _Variables) -> Launch:
    rank, size = variables.rank_of("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local_rank, local_size = variables.local_rank_of(
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    )
    address, port = variables.address_of("MASTER_ADDR", "MASTER_PORT")
    return Launch(
        launcher="mpirun",
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        address=address,
        port=port,
        host=variables.text(HOST_VARIABLE),
    )


class _Variables:
    """The environment, with errors that name the variable."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str) -> str:
        return self._environment.get(name, "")

    def number(self, name: str) -> int | None:
        """An integer of at least 0; None where the variable is not set."""
        value = self._environment.get(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise ConfigurationError(f"{name} is {value!r}; it must be an integer of at least 0")
        return int(value)

    def rank_of(self, rank_name: str, size_name: str) -> tuple[int, int]:
        rank, size = self.local_rank_of(rank_name, size_name)
        if rank is None or size is None:
            unset, is_set = (rank_name, size_name) if rank is None else (size_name, rank_name)
            raise ConfigurationError(f"{is_set} is set but {unset} is not: set both or neither")
        return rank, size

    def local_rank_of(self, rank_name: str, size_name: str) -> tuple[int | None, int | None]:
        """A rank below its size; either may be unset."""
        rank, size = self.number(rank_name), self.number(size_name)
        if size is not None and size < 1:
            raise ConfigurationError(f"{size_name} is {size}; it must be at least 1")
        if rank is not None and size is not None and rank >= size:
            raise ConfigurationError(
                f"{rank_name} is {rank}; it must be less than {size_name}, which is {size}"
            )
        return rank, size

    def address_of(self, address_name: str, port_name: str) -> tuple[str | None, int | None]:
        address, port = self.text(address_name) or None, self.number(port_name)
        if (address is None) != (port is None):
            unset, is_set = address_name, port_name
            if port is None:
                unset, is_set = port_name, address_name
            raise ConfigurationError(f"{is_set} is set but {unset} is not: set both or neither")
        if port is not None and not 0 < port <= MAX_PORT:
            raise ConfigurationError(f"{port_name} is {port}; it must be from 1 to {MAX_PORT}")
        return address, port
