"""CPU cores for threads: the cores that affinity and cgroup quota allow, and thread bindings."""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Cores:
    """The CPU resources of this process.

    Attributes:
        cpus: one CPU per physical core that the process may run on.
        quota: CPU time that its cgroups allow, in CPUs, or None.
    """

    cpus: tuple[int, ...]
    quota: float | None

    def num_threads(self, wanted: int | None = None) -> int:
        """Number of threads: `wanted`, or by default one per core within the quota.

        Raises:
            ValueError: `wanted` is below 1 or above the cores.
        """
        if wanted is None:
            allowed = len(self.cpus) if self.quota is None else int(self.quota)
            return max(1, min(len(self.cpus), allowed))
        if not 1 <= wanted <= len(self.cpus):
            raise ValueError(f"{wanted} threads: this process may use 1 to {len(self.cpus)} cores")
        return wanted

    def bindings(self, num_threads: int) -> tuple[int, ...] | None:
        """The CPU of each thread if the threads take all cores, else None.

        Otherwise two processes that each leave cores free could bind to the same ones.
        """
        return self.cpus if num_threads == len(self.cpus) else None


def available_cores() -> Cores:
    """The cores of this process under its current limits."""
    return Cores(physical_cores(os.sched_getaffinity(0)), cpu_quota())


def physical_cores(allowed: Collection[int], cpus: Path = _CPUS) -> tuple[int, ...]:
    """The first allowed CPU of each physical core: sibling CPUs share arithmetic units."""
    first_of: dict[str, int] = {}
    for cpu in sorted(allowed):
        siblings = cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            core = siblings.read_text().strip()
        except OSError:
            core = f"only {cpu}"
        first_of.setdefault(core, cpu)
    return tuple(first_of.values())


def cpu_quota(membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> float | None:
    """The cgroup CPU quota of this process, in CPUs; None without a limit.

    Reads cpu.max (version 2) and cpu.cfs_quota_us (version 1) of its group and all parents.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += _quotas_above(cgroups, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in ("cpu", controllers):
                quotas += _quotas_above(cgroups / mount, path, _quota_v1)
    return min(quotas, default=None)


def _quotas_above(root: Path, path: str, quota_of: Callable[[Path], float | None]) -> list[float]:
    group = root / path.strip("/")
    folders = [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return [quota for folder in folders if (quota := quota_of(folder)) is not None]


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
