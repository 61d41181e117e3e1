"""Arguments of data parallelism: how many workers `taco_llm serve` starts, and where."""

import re
from dataclasses import dataclass

from taco_common.listener import EVERY_HOST
from taco_llm.args.flags import flag
from taco_llm.args.scheduler_args import check_at_least
from taco_proto.errors import ArgumentError

DEFAULT_PORT = 7100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaArgs:
    """Arguments of the replicas; each replica is a worker with a whole copy of the model.

    Raises:
        ConfigurationError: a value is out of range.
    """

    data_parallel_size: int = flag(
        "Number of workers to start, each with a whole copy of the model. On this machine each "
        "worker gets one GPU, or an equal share of the CPU cores.",
        default=1,
        parse=int,
        metavar="WORKERS",
        short="-dp",
    )
    distributed_executor_backend: str = flag(
        "Where workers run: mp starts processes on this machine; ray starts actors on the Ray "
        "cluster of RAY_ADDRESS or of this machine, and starts a local one if needed.",
        default="mp",
        choices=("mp", "ray"),
    )
    worker_use_ray: bool = flag(
        "Deprecated: use --distributed-executor-backend ray.",
        default=False,
        is_advanced=True,
    )
    scheduler_listen: str | None = flag(
        "Address (host:port) at which the scheduler listens for workers. All workers must be able "
        f"to reach it. Default: a private Unix socket with mp; port {DEFAULT_PORT} of this "
        "machine's cluster address with ray.",
        default=None,
        metavar="ADDRESS",
    )

    def __post_init__(self) -> None:
        check_at_least("data_parallel_size", self.data_parallel_size, 1)
        if self.scheduler_listen is not None:
            match = re.fullmatch(
                r"\[([^\[\]]+)\]:(\d{1,5})|([^:\[\]]*):(\d{1,5})", self.scheduler_listen
            )
            host, port = (match[1] or match[3], int(match[2] or match[4])) if match else ("", 0)
            if host in EVERY_HOST or not 0 < port < 65536:
                raise ArgumentError(
                    "scheduler_listen must be host:port with a host that workers can reach, got "
                    f"{self.scheduler_listen!r}"
                )

    @property
    def on_ray(self) -> bool:
        return self.worker_use_ray or self.distributed_executor_backend == "ray"

    @property
    def on_network(self) -> bool:
        """Whether the scheduler listens on a network address instead of a private Unix socket."""
        return self.on_ray or self.scheduler_listen is not None
