"""Connects to a Ray cluster for workers, or starts one on this machine."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_proto.errors import ConfigurationError

CONNECT_SECONDS = 5.0

LOGGER = logging.getLogger("taco.supervisor")


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A connected Ray cluster.

    Attributes:
        host: this machine's address in the cluster.
        num_gpus: number of GPUs of all nodes.
    """

    host: str
    num_gpus: int

    def address(self, port: int) -> str:
        """The address of a port on this machine, which nodes of the cluster can reach."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


@contextmanager
def ray_cluster(directory: Path) -> Iterator[RayCluster]:
    """Connects to the cluster of RAY_ADDRESS or of this machine, or starts one on this machine.

    At the end of the context its actors end, and so does a cluster that was started.

    Args:
        directory: a private, empty directory for the files of a cluster that is started.

    Raises:
        ConfigurationError: Ray is not installed, or the cluster cannot be used.
    """
    # Ray sends no usage statistics unless the operator allows it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ConfigurationError(
            "distributed_executor_backend ray needs Ray: pip install 'taco-llm[ray]'"
        ) from None

    # Ray puts the working directory first on the import path of its processes. Files there must not
    # shadow packages.
    with chdir(directory):
        _connect(os.environ.get("RAY_ADDRESS") or None, directory)
    try:
        resources = ray.cluster_resources()
        cluster = RayCluster(ray.util.get_node_ip_address(), int(resources.get("GPU", 0)))
        LOGGER.info(
            "on the Ray cluster of %s: %d nodes, %g CPUs, %d GPUs",
            ray.get_runtime_context().gcs_address,
            len(ray.nodes()),
            resources.get("CPU", 0),
            cluster.num_gpus,
        )
        yield cluster
    finally:
        ray.shutdown()


def _connect(address: str | None, directory: Path) -> None:
    """Connects to the cluster at `address`; without an address, to a local or a new cluster.

    Raises:
        ConfigurationError: there is no cluster at `address`, or it cannot be used.
    """
    import ray

    if address is not None and address.startswith("ray://"):
        raise ConfigurationError(
            f"RAY_ADDRESS {address} is an address for Ray Client, which is not supported: run the "
            "command on a node of the cluster with RAY_ADDRESS=auto"
        )
    if address not in (None, "auto", "local"):
        _check_reachable(address)
    # `ServiceActor` forwards the output of services; Ray must not print it as well.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address != "local":
            ray.init(address or "auto", **options)
            return
    except Exception as error:
        # Many causes: another version of Ray or Python, another token, …
        if address is not None or not isinstance(error, ConnectionError):
            what = address or "this machine"
            raise ConfigurationError(
                f"cannot use the Ray cluster of {what}: {_first_line(error)}"
            ) from None
    LOGGER.info("found no Ray cluster: starting one on this machine")
    try:
        ray.init("local", include_dashboard=False, _temp_dir=str(directory / "ray"), **options)
    except Exception as error:
        # Many causes: the path is too long for sockets, the home directory is full, …
        raise ConfigurationError(f"cannot start a Ray cluster here: {_first_line(error)}") from None


def _check_reachable(address: str) -> None:
    """Checks that something listens at `address`. Ray itself would try for minutes.

    Raises:
        ConfigurationError: the connection fails.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no Ray cluster at {address}: {error}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
