"""What workers on Ray need of the cluster: CPUs and GPUs, in how many groups, on which nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """What one worker needs.

    Attributes:
        cpus, gpus: numbers; Ray takes fractions of a CPU.
    """

    cpus: float = 1
    gpus: int = 0

    @classmethod
    def of(cls, cpus: float, use_gpu: bool, gpus: int | None) -> Resources:
        """Horovod's three arguments.

        Raises:
            ValueError: they contradict each other, or are negative.
        """
        if gpus is not None and not use_gpu:
            raise ValueError(
                f"{gpus} GPUs a worker are asked for, but use_gpu is False: set use_gpu=True"
            )
        if gpus is not None and gpus < 1:
            raise ValueError(f"a worker cannot have {gpus} GPUs; it must have at least 1")
        if cpus < 0:
            raise ValueError(f"a worker cannot have {cpus} CPUs; it must have at least 0")
        return cls(cpus, (gpus or 1) if use_gpu else 0)

    def times(self, count: int) -> dict[str, float]:
        """What `count` workers need, as Ray names it."""
        needs = {"CPU": self.cpus * count, "GPU": float(self.gpus * count)}
        return {name: number for name, number in needs.items() if number}

    def slots(self, available: dict[str, float]) -> int:
        """How many workers have room in these resources."""
        needs = self.times(1)
        return int(min((available.get(name, 0) // number for name, number in needs.items())))

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs" + (f" and {self.gpus} GPUs" if self.gpus else "")


@dataclass(frozen=True, slots=True)
class Groups:
    """How many workers a job has, and which of them share a node.

    Attributes:
        count: of groups.
        size: workers of a group, which share a node.
        is_spread: no two groups share a node.
    """

    count: int
    size: int = 1
    is_spread: bool = False

    @classmethod
    def of(
        cls, num_workers: int | None, num_hosts: int | None, num_workers_per_host: int
    ) -> Groups:
        """Horovod's three arguments.

        Raises:
            ValueError: they contradict each other, or are no positive numbers.
        """
        if num_workers is not None and num_hosts is not None:
            raise ValueError(
                f"num_workers is {num_workers} and num_hosts is {num_hosts}: set one of them"
            )
        if num_workers is None and num_hosts is None:
            raise ValueError("the number of workers is missing: set num_workers, or num_hosts")
        for name, value in (
            ("num_workers", num_workers),
            ("num_hosts", num_hosts),
            ("num_workers_per_host", num_workers_per_host),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if num_workers is not None:
            return cls(num_workers)
        assert num_hosts is not None
        return cls(num_hosts, num_workers_per_host, is_spread=True)

    @property
    def num_workers(self) -> int:
        return self.count * self.size

    def __str__(self) -> str:
        if self.is_spread:
            return f"{self.count} hosts with {self.size} workers each"
        return f"{self.num_workers} workers"
