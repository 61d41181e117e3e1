"""Flags of the KV cache tiers, and the configurations that they make."""

import logging
from pathlib import Path

import psutil
import pytest

from support.checkpoints import make_checkpoint
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.replica_args import ReplicaArgs
from taco_llm.supervisor.local_replicas import local_replicas
from taco_llm.supervisor.preflight import check_before_start
from taco_proto.config import SchedulerConfig, WorkerConfig
from taco_proto.errors import ConfigurationError

pytestmark = pytest.mark.slow

GIB = 2**30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("llama")))


def worker_config(model: str, **arguments: object) -> WorkerConfig:
    return EngineArgs(model=model, **arguments).worker_config()  # type: ignore[arg-type]


def scheduler_config(**arguments: object) -> SchedulerConfig:
    return EngineArgs(model="m", **arguments).scheduler_config()  # type: ignore[arg-type]


def test_without_a_flag_there_are_no_tiers(model: str) -> None:
    config = worker_config(model)
    assert (config.host_kv_bytes, config.kv_disk_path, config.lazy_loads) == (0, None, True)


def test_offload_takes_a_share_of_the_machines_memory_or_what_is_said(model: str) -> None:
    total = psutil.virtual_memory().total
    on = {"enable_prefix_cache_offload": True}
    assert worker_config(model, **on).host_kv_bytes == int(0.3 * total)
    half = worker_config(model, **on, cpu_prefill_memory_utilization=0.5)
    assert half.host_kv_bytes == int(0.5 * total)
    assert worker_config(model, **on, swap_space=1.5).host_kv_bytes == 3 * GIB // 2
    assert not worker_config(model, **on, apc_offload_lazy=False).lazy_loads


def test_workers_of_a_machine_divide_the_share_but_not_the_swap_space(model: str) -> None:
    def sizes(**arguments: object) -> list[tuple[int, bool, int]]:
        engine = EngineArgs(model=model, enable_prefix_cache_offload=True, **arguments)  # type: ignore[arg-type]
        configs = [child._config for child in local_replicas(engine, "unix:/s", 4)]
        return [
            (config.host_kv_bytes, config.host_kv_may_shrink, config.num_local_workers)
            for config in configs
            if isinstance(config, WorkerConfig)
        ]

    total = psutil.virtual_memory().total
    assert sizes() == [(int(total * 0.3 / 4), True, 4)] * 4
    given = sizes(cpu_prefill_memory_utilization=0.02)
    assert given == [(int(total * 0.02 / 4), False, 4)] * 4
    assert sizes(swap_space=1.5) == [(3 * GIB // 2, False, 4)] * 4


def test_the_disk_tier_has_a_directory_and_a_size(model: str, tmp_path: Path) -> None:
    on = {"enable_prefix_cache_offload": True, "kv_disk_path": str(tmp_path)}
    config = worker_config(model, **on)
    assert (config.kv_disk_path, config.kv_disk_bytes) == (str(tmp_path), 16 * GIB)
    assert worker_config(model, **on, kv_disk_space=0.5).kv_disk_bytes == GIB // 2


def test_what_the_scheduler_reads() -> None:
    config = scheduler_config()
    assert (config.offload_min_accesses, config.log_hit_counts) == (1, False)
    assert config.max_cached_device_blocks is None
    config = scheduler_config(
        apc_offload_min_access_threshold=3,
        apc_offload_enable_hit_cnt=True,
        apc_offload_gpu_evictor_limit=0,
    )
    assert (config.offload_min_accesses, config.log_hit_counts) == (3, True)
    assert config.max_cached_device_blocks == 0


def test_who_waits_who_gives_way_and_what_is_kept() -> None:
    config = scheduler_config(preemption_mode=None)
    assert (config.swaps_preempted, config.max_pinned_share) == (False, 0.5)
    assert config.prompt_delay_factor == 0.0
    config = scheduler_config(
        preemption_mode="swap", max_pinned_share=0.25, scheduler_delay_factor=1.5
    )
    assert (config.swaps_preempted, config.max_pinned_share) == (True, 0.25)
    assert config.prompt_delay_factor == 1.5
    assert not scheduler_config(preemption_mode="recompute").swaps_preempted


def test_swap_space_alone_offloads_nothing_and_serve_says_so_once(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    args = EngineArgs(model=model, swap_space=4, preemption_mode="swap")
    with caplog.at_level(logging.WARNING):
        check_before_start(args, ReplicaArgs())
        (worker,) = local_replicas(args, "unix:/s", 1)
    assert isinstance(worker._config, WorkerConfig)
    assert worker._config.host_kv_bytes == 0
    assert caplog.messages == [
        "swap_space has no effect without enable_prefix_cache_offload",
        "preemption_mode swap has no effect without enable_prefix_cache_offload",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cpu_prefill_memory_utilization": 0.0}, "above 0 and at most 1, got 0.0"),
        ({"cpu_prefill_memory_utilization": 1.1}, "above 0 and at most 1, got 1.1"),
        ({"swap_space": -1.0}, "swap_space must be a number from 0 on, got -1.0"),
        ({"swap_space": float("nan")}, "swap_space must be a number from 0 on, got nan"),
        ({"swap_space": 0.0, "enable_prefix_cache_offload": True}, "swap_space must be above 0"),
        ({"kv_disk_space": 0.0}, "kv_disk_space must be above 0, got 0.0"),
        ({"kv_disk_path": "/x"}, "kv_disk_path needs enable_prefix_cache_offload"),
        (
            {"enable_prefix_cache_offload": True, "enable_prefix_caching": False},
            "enable_prefix_cache_offload needs enable_prefix_caching",
        ),
        ({"apc_offload_min_access_threshold": 0}, "an integer of at least 1, got 0"),
        ({"apc_offload_gpu_evictor_limit": -2}, "an integer of at least -1, got -2"),
        ({"preemption_mode": "drop"}, "'drop' is not available; choose from recompute, swap"),
        ({"max_pinned_share": 1.1}, "max_pinned_share must be between 0 and 1, got 1.1"),
        ({"max_pinned_share": float("nan")}, "between 0 and 1, got nan"),
        ({"scheduler_delay_factor": -1.0}, "must be a number from 0 on, got -1.0"),
        ({"scheduler_delay_factor": float("inf")}, "must be a number from 0 on, got inf"),
    ],
)
def test_invalid_arguments_are_a_one_line_error(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        EngineArgs(model="m", **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
