import os
from pathlib import Path

import pytest

from taco_kernels.native.cores import Cores, available_cores, cpu_quota, physical_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        # The least of a group and those above it holds.
        (
            "0::/pod/box\n",
            {"pod/cpu.max": "200000 100000", "pod/box/cpu.max": "400000 100000"},
            2.0,
        ),
        # A container whose own group is mounted as the root, though it goes by the host's path.
        ("0::/host/path\n", {"cpu.max": "150000 100000"}, 1.5),
        ("4:cpu,cpuacct:/\n0::/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "300000\n"}, None),
        (
            "4:cpu,cpuacct:/box\n",
            {
                "cpu/box/cpu.cfs_quota_us": "300000\n",
                "cpu/box/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            None,
        ),
    ],
)
def test_the_quota_of_control_groups(
    tmp_path: Path, membership: str, files: dict[str, str], quota: float | None
) -> None:
    groups = write(tmp_path / "groups", files)
    write(tmp_path, {"membership": membership})

    assert cpu_quota(tmp_path / "membership", groups) == quota


def test_a_machine_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path) is None


def test_siblings_are_one_core(tmp_path: Path) -> None:
    siblings = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 2: "2,6", 6: "2,6"}
    files = {f"cpu{cpu}/topology/thread_siblings_list": f"{s}\n" for cpu, s in siblings.items()}
    cpus = write(tmp_path, files)

    assert physical_cores({0, 1, 2, 4, 5, 6}, cpus) == (0, 1, 2)
    assert physical_cores({4, 5, 1}, cpus) == (1, 4)
    assert physical_cores({2, 7}, cpus) == (2, 7)  # of which the system says nothing


@pytest.mark.parametrize(
    ("cores", "quota", "threads"),
    [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 16.0, 2)],
)
def test_threads_by_default(cores: int, quota: float | None, threads: int) -> None:
    assert Cores(tuple(range(cores)), quota).num_threads() == threads


def test_wanted_threads_fit_the_cores() -> None:
    cores = Cores((0, 1, 2, 3), quota=2.0)

    assert cores.num_threads(4) == 4
    for wanted in (0, -1, 5):
        with pytest.raises(ValueError, match=rf"{wanted} threads: this process may use 1 to 4 co"):
            cores.num_threads(wanted)


def test_threads_are_bound_only_where_they_take_all_cores() -> None:
    cores = Cores((0, 2, 4), quota=None)

    assert cores.bindings(3) == (0, 2, 4)
    assert cores.bindings(2) is None


def test_this_process() -> None:
    cores = available_cores()

    assert set(cores.cpus) <= os.sched_getaffinity(0)
    assert cores.num_threads() >= 1
