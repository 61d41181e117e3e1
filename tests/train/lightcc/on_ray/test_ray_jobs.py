"""RayExecutor and ElasticRayExecutor on a Ray cluster of two nodes, with real processes.

The driver is a separate process, since Ray reads its token when it is imported.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ray_nodes import OTHER, ray_nodes
from support.train_processes import RankPool

pytestmark = [pytest.mark.process, pytest.mark.slow]
STEPS, KILLED_AT, WAITS_AT = 12, 5, 8


@pytest.fixture(scope="module")
def driver() -> Iterator[RankPool]:
    with ray_nodes() as nodes, RankPool(1, environment=nodes.environment) as pool:
        pool.run(start_two_hosts)
        yield pool
        pool.run(stop)


def executor(**arguments: Any) -> Any:
    from horovod.ray import RayExecutor

    return RayExecutor(RayExecutor.create_settings(timeout_s=120), **arguments)


_started: list[Any] = []


def start_two_hosts() -> None:
    """One rank on each node, with an executable."""

    class Trainer:
        def __init__(self, base: int, *, factor: int) -> None:
            self.base, self.factor = base, factor

        def sum_of_ranks(self) -> float:
            import torch

            import horovod.torch as hvd

            hvd.init()
            mine = torch.tensor([float(self.base + hvd.rank() * self.factor)])
            return float(hvd.allreduce(mine, op=hvd.Sum).item())

    made = executor(num_hosts=2, num_workers_per_host=1)
    made.start(Trainer, [10], {"factor": 5}, extra_env_vars={"GREETING": 7})
    _started.append(made)


def stop() -> None:
    _started.pop().shutdown()


def test_ranks_on_two_nodes_add_tensors(driver: RankPool) -> None:
    driver.run(check_two_hosts)


def check_two_hosts() -> None:
    import ray

    (two,) = _started
    assert two.execute(lambda trainer: trainer.sum_of_ranks()) == [25.0, 25.0]
    assert two.execute_single(lambda trainer: trainer.base) == 10

    def where(name: str, *, also: str) -> tuple[Any, ...]:
        import ray

        import horovod.torch as hvd

        hvd.init()
        hosts = hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        return (*hosts, os.environ[name], os.environ[also], ray.util.get_node_ip_address())

    found = two.run(where, ["GREETING"], {"also": "HOROVOD_RANK"})
    assert [one[:5] for one in found] == [(1, 0, 2, "7", "0"), (1, 1, 2, "7", "1")]
    (other,) = {one[5] for one in found} - {OTHER}
    assert other  # Ray takes an address of the machine for that of the head
    assert ray.get(two.run_remote(lambda: os.environ["HOROVOD_RANK"])) == ["0", "1"]


def test_an_error_names_the_rank_and_ends_the_wait_of_others(driver: RankPool) -> None:
    driver.run(check_error)


def check_error() -> None:
    def fail_on_one() -> None:
        import torch

        import horovod.torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("no data")
        hvd.allreduce(torch.ones(3), name="never")

    def leave() -> None:
        import horovod.torch as hvd

        hvd.shutdown()

    (two,) = _started
    with pytest.raises(ValueError, match="no data") as failure:
        two.run(fail_on_one)
    assert "raised by rank 1 on host " in failure.value.__notes__[0]
    # All ranks have left the job, and may join the next.
    two.run(leave)
    assert two.execute(lambda trainer: trainer.sum_of_ranks()) == [25.0, 25.0]


def test_what_cannot_be_pickled_is_one_line(driver: RankPool) -> None:
    assert driver.run(send_a_lock) == [
        "locked or its arguments cannot be sent to the workers: cannot pickle '_thread.lock' "
        "object; make such objects inside the function"
    ]


def send_a_lock() -> str:
    lock = threading.Lock()

    def locked() -> None:
        with lock:
            pass

    with pytest.raises(TypeError) as failure:
        _started[0].run(locked)
    return str(failure.value)


def test_a_dead_rank_is_named(driver: RankPool) -> None:
    """Others end with an error too; `start` works again after `shutdown`."""
    driver.run(check_dead_rank)


def check_dead_rank() -> None:
    from taco_train.lightcc.launcher.rank_group import JobError

    def die() -> None:
        import torch

        import horovod.torch as hvd

        hvd.init()
        if hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(3), name="never")

    (two,) = _started
    with pytest.raises(JobError, match=r"^rank 0 on host [0-9.]+ has died: [^\n]+$"):
        two.run(die)
    two.shutdown()
    two.start()
    assert two.run(lambda: os.environ["HOROVOD_SIZE"]) == ["2", "2"]


def test_a_cluster_without_room_is_described(driver: RankPool) -> None:
    assert driver.run(ask_for_too_much) == [
        "the Ray cluster has no room for 2 workers with 3 CPUs each within 0.2 s: its 2 nodes "
        "have 4 CPUs and 0 GPUs, and other jobs may use some (see `ray status`)"
    ]


def ask_for_too_much() -> str:
    from horovod.ray import RayExecutor

    settings = RayExecutor.create_settings(placement_group_timeout_s=0.2)
    with pytest.raises(TimeoutError) as failure:
        RayExecutor(settings, num_workers=2, cpus_per_worker=3).start()
    return str(failure.value)


def test_variables_of_the_driver_reach_workers(driver: RankPool) -> None:
    driver.run(check_variables)


def check_variables() -> None:
    from taco_train.lightcc.variables import VariableError

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHT_TOPK_RATIO", "2")
        with pytest.raises(VariableError, match="LIGHT_TOPK_RATIO is '2'"):
            executor(num_workers=1).start()
        patch.setenv("LIGHT_TOPK_RATIO", "0.02")
        made = executor(num_workers=1)
        made.start()
    assert made.run(lambda: os.environ["LIGHT_TOPK_RATIO"]) == ["0.02"]
    made.shutdown()


def test_the_callers_placement_group_is_used(driver: RankPool) -> None:
    driver.run(check_placement_group)


def check_placement_group() -> None:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def start_inside() -> tuple[int, list[str]]:
        import ray

        from horovod.ray import RayExecutor

        before = len(ray.util.placement_group_table())
        made = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_workers=1)
        made.start()
        found = made.run(lambda: os.environ["HOROVOD_SIZE"])
        made.shutdown()
        return len(ray.util.placement_group_table()) - before, found

    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_capture_child_tasks=True
    )
    task = ray.remote(num_cpus=1)(start_inside).options(scheduling_strategy=strategy)
    assert ray.get(task.remote()) == (0, ["1"])
    ray.util.remove_placement_group(group)


def test_a_killed_rank_is_replaced_on_another_node(driver: RankPool, tmp_path: Path) -> None:
    (found,) = driver.run(train_on_ray, tmp_path)
    expected = sum(0.5 * step for step in range(STEPS))
    assert found == [(2, STEPS, expected), (2, STEPS, expected)]
    # Worker 1 was killed; rank 0 went on alone from the last commit, until a node came.
    starts = (tmp_path / "starts").read_text().split()
    assert starts[0] == "2:0"
    assert "1:4" in starts
    assert starts[-1].startswith("2:")


class Discovery:
    """The second node is only seen once `folder/come` is there."""

    def __init__(self, folder: Path) -> None:
        from horovod.ray import RayHostDiscovery

        self._folder = folder
        self._nodes = RayHostDiscovery()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        first, second = sorted(self._nodes.find_available_hosts_and_slots())
        return {first: 2, second: 1} if (self._folder / "come").exists() else {first: 2}


def train_on_ray(folder: Path) -> list[Any]:
    from horovod.ray import ElasticRayExecutor

    settings = ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=2, timeout_s=120)
    settings.discovery = Discovery(folder)
    executor = ElasticRayExecutor(settings, cpus_per_slot=0.5, override_discovery=False)
    executor.start()
    # Constants of this module would be sought in the workers, which do not have it.
    steps, killed_at, waits_at, path = STEPS, KILLED_AT, WAITS_AT, str(folder)

    def train() -> tuple[int, int, float]:
        import time

        import torch

        import horovod.torch as hvd

        hvd.init()
        state = hvd.elastic.ObjectState(step=0, total=0.0)

        @hvd.elastic.run
        def loop(state: Any) -> None:
            if hvd.rank() == 0:
                with open(f"{path}/starts", "a") as file:
                    file.write(f"{hvd.size()}:{state.step}\n")
            while state.step < steps:
                if os.environ["HOROVOD_ELASTIC_WORKER"] == "1" and state.step == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if state.step == waits_at and hvd.size() == 1:
                    open(f"{path}/come", "w").close()
                    time.sleep(0.05)
                    state.commit()
                    continue
                mine = torch.tensor(0.5 * state.step, dtype=torch.float64)
                state.total += hvd.allreduce(mine, name="value").item()
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()

        loop(state)
        return hvd.size(), state.step, state.total

    return executor.run(train)


def test_settings_that_cannot_be() -> None:
    from horovod.ray import ElasticRayExecutor, RayExecutor

    with pytest.raises(ValueError, match="max_num_proc is 1; it must be at least min_num_proc, 2"):
        ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=1)
    settings = RayExecutor.create_settings()
    for arguments, message in (
        ({}, "number of workers is missing"),
        ({"num_workers": 2, "num_hosts": 1}, "set one of them"),
        ({"num_workers": 0}, "num_workers is 0; it must be at least 1"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "use_gpu is False"),
        ({"min_workers": 1, "num_hosts": 1}, "set min_workers and max_workers"),
    ):
        with pytest.raises(ValueError, match=message):
            RayExecutor(settings, **arguments)  # type: ignore[arg-type]
