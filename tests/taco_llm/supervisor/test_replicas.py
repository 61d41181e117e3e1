"""Replicas of `taco_llm serve`: number, place, devices and command lines."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taco_kernels.native.cores import Cores
from taco_llm.args.draft_worker_args import DraftWorkerArgs
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import given
from taco_llm.args.replica_args import ReplicaArgs
from taco_llm.cli.main import build_parser
from taco_llm.cli.options import collect
from taco_llm.supervisor import local_replicas as local
from taco_llm.supervisor.ray_replicas.cluster import RayCluster, ray_cluster
from taco_llm.supervisor.ray_replicas.command_lines import draft_worker_command, worker_command
from taco_proto.config import DrafterConfig, WorkerConfig
from taco_proto.errors import ConfigurationError

ON_CPUS = RayCluster("10.0.0.1", num_gpus=0)
ON_GPUS = RayCluster("10.0.0.1", num_gpus=4)


def configs(children: list[Any]) -> list[Any]:
    return [child._config for child in children]


def parsed(argv: list[str]) -> dict[str, Any]:
    namespace = build_parser().parse_args(argv)
    return collect(namespace.parser, namespace)


def worker_config_of(argv: list[str]) -> WorkerConfig:
    """As `taco_llm worker` reads its command line."""
    values = parsed(argv)
    return EngineArgs(**given(EngineArgs, values)).worker_config(
        values["scheduler"], values["name"]
    )


def drafter_config_of(argv: list[str]) -> DrafterConfig:
    values = parsed(argv)
    args = DraftWorkerArgs(**given(DraftWorkerArgs, values))
    return args.drafter_config(values["scheduler"], values["name"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"data_parallel_size": 0},
        {"scheduler_listen": "7100"},
        {"scheduler_listen": "0.0.0.0:7100"},
        {"scheduler_listen": "[::]:7100"},
        {"scheduler_listen": "host:0"},
        {"scheduler_listen": "host:65536"},
        {"scheduler_listen": "unix:/x"},
    ],
)
def test_invalid_replica_arguments_are_rejected(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        ReplicaArgs(**arguments)


def test_the_deprecated_ray_flag_still_works() -> None:
    assert ReplicaArgs(**given(ReplicaArgs, parsed(["serve", "demo", "--worker-use-ray"]))).on_ray
    assert ReplicaArgs(distributed_executor_backend="ray").on_ray
    assert not ReplicaArgs(scheduler_listen="[::1]:7100").on_ray


def test_a_single_worker_keeps_its_device_and_threads() -> None:
    (child,) = local.local_replicas(EngineArgs(model="demo", device="cuda:1"), "unix:/s", 1)
    assert child.title == "the worker"
    (config,) = configs([child])
    assert (config.device, config.num_threads) == ("cuda:1", None)


def test_several_workers_get_one_gpu_or_equal_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "available_cores", lambda: Cores(tuple(range(7)), None))
    engine = EngineArgs(model="demo", speculative_model="demo-draft")
    children = local.local_replicas(engine, "unix:/s", 2)
    assert [child.title for child in children] == [
        *("worker-0", "worker-1", "drafter-0", "drafter-1")
    ]
    assert [config.name for config in configs(children)] == [child.name for child in children]
    assert [config.num_threads for config in configs(children)] == [3, 3, 3, 3]
    assert [config.device for config in configs(children)[:2]] == ["auto:0", "auto:1"]
    for device, expected in [("cuda", ["cuda:0", "cuda:1"]), ("cpu", ["cpu", "cpu"])]:
        children = local.local_replicas(replace(engine, device=device), "unix:/s", 2)
        assert [config.device for config in configs(children)[:2]] == expected
    crowd = local.local_replicas(EngineArgs(model="demo", num_threads=2), "unix:/s", 9)
    assert {config.num_threads for config in configs(crowd)} == {2}
    crowd = local.local_replicas(EngineArgs(model="demo"), "unix:/s", 9)
    assert {config.num_threads for config in configs(crowd)} == {1}


@pytest.mark.parametrize("license_id", ["host-7", None])
def test_each_cpu_worker_has_its_own_license_id(
    monkeypatch: pytest.MonkeyPatch, license_id: str | None
) -> None:
    from taco_llm.supervisor.ray_replicas.replicas import ray_replicas

    monkeypatch.setenv("TACO_LS_ADDR", "http://10.0.0.7:10080")
    engine = EngineArgs(model="demo", license_id=license_id, num_threads=1)
    for count, suffixes in [(1, [""]), (2, ["-0", "-1"])]:
        monkeypatch.setenv("TACO_LICENSE_ID", "here")
        here = configs(local.local_replicas(engine, "unix:/s", count))
        ids = [f"{license_id or 'here'}{suffix}" for suffix in suffixes]
        assert [config.license.host_id for config in here] == ids
        workers: list[Any] = ray_replicas(engine, "h:1", count, ON_CPUS)
        monkeypatch.setenv("TACO_LICENSE_ID", "there")  # the node's, where the command line is read
        there = [worker_config_of(worker._argv).license for worker in workers]
        ids = [f"{license_id or 'there'}{suffix}" for suffix in suffixes]
        assert [config and config.host_id for config in there] == ids


def test_several_workers_on_one_gpu_are_rejected() -> None:
    engine = EngineArgs(model="demo", device="cuda:0")
    with pytest.raises(ConfigurationError, match=r"device cuda:0 is one GPU: give device cuda"):
        local.local_replicas(engine, "unix:/s", 2)


def test_command_lines_reproduce_the_arguments(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    plain = EngineArgs(model="demo", license="off")
    busy = EngineArgs(
        model=str(tmp_path),
        served_model_name=("a b", "-c"),
        rope_scaling={"rope_type": "linear", "factor": 2.5},
        rope_theta=1e6,
        enforce_eager=True,
        enable_prefix_cache_offload=True,
        swap_space=1.5,
        kv_disk_path=str(tmp_path / "kv"),
        speculative_model="[ngram]",
        ngram_prompt_lookup_max=4,
        device="cuda",
        num_threads=3,
        max_num_seqs=17,
        seed=7,
        license="off",
    )
    # A size or a GPU option that is given means more than the default, which has the same value.
    explicit = EngineArgs(
        model="demo",
        enable_prefix_cache_offload=True,
        cpu_prefill_memory_utilization=0.3,
        gpu_memory_utilization=0.9,
        enforce_eager=False,
        license="off",
    )
    for engine in (plain, busy, explicit):
        argv = worker_command(engine, "host:1", "worker-3")
        assert worker_config_of(argv) == engine.worker_config("host:1", "worker-3")
        assert draft_worker_command(engine, "host:1", "drafter-3") is None
    drafted = EngineArgs(
        model="demo",
        speculative_model="demo-draft",
        speculative_model_quantization="none",
        num_threads=2,
    )
    argv = draft_worker_command(drafted, "host:1", "drafter-0") or []
    expected = drafted.drafter_config("host:1")
    assert expected is not None
    config = drafter_config_of(argv)
    model = replace(config.model, served_model_names=expected.model.served_model_names)
    assert replace(config, model=model) == expected


def test_ray_keeps_which_arguments_are_given() -> None:
    from taco_llm.supervisor.ray_replicas.replicas import ray_replicas

    plain: dict[str, Any] = {"model": "demo", "enable_prefix_cache_offload": True, "num_threads": 1}
    explicit = {**plain, "cpu_prefill_memory_utilization": 0.3}
    for arguments, may_shrink in ((plain, True), (explicit, False)):
        workers: list[Any] = ray_replicas(EngineArgs(**arguments), "h:1", 2, ON_CPUS)
        configs = [worker_config_of(worker._argv) for worker in workers]
        assert [config.host_kv_may_shrink for config in configs] == [may_shrink] * 2
        assert [config.given_gpu_options for config in configs] == [()] * 2


def test_command_lines_contain_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bundled models and hub ids are found by name on each machine; files by their path."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    engine = EngineArgs(
        model="model",
        download_dir="hub",
        lookahead_cache_config_dir=".",
        quantization_param_path="scales.json",
    )
    argv = worker_command(engine, "h:1", "w")
    for flag in (
        *(f"--model={model}", f"--download-dir={tmp_path / 'hub'}", "--served-model-name=model"),
        f"--lookahead-cache-config-dir={tmp_path}",
        f"--quantization-param-path={tmp_path / 'scales.json'}",
    ):
        assert flag in argv
    assert "--model=demo" in worker_command(EngineArgs(model="demo"), "h:1", "w")
    assert "--model=org/name" in worker_command(EngineArgs(model="org/name"), "h:1", "w")


@pytest.mark.parametrize("name", ["a.gguf", "a-GGUF"])
def test_a_model_in_gguf_has_an_absolute_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the directory that this machine makes of it, nor of a link's target."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-GGUF").mkdir()
    for file in ("blob", "a-GGUF/a.gguf"):
        (tmp_path / file).touch()
    (tmp_path / "a.gguf").symlink_to("blob")
    assert f"--model={tmp_path / name}" in worker_command(EngineArgs(model=name), "h:1", "w")


def test_files_of_the_hub_are_not_downloaded_for_a_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def download(*_: object) -> None:
        raise AssertionError("downloaded")

    monkeypatch.setattr("taco_worker.models.gguf_download.download_gguf", download)
    argv = worker_command(EngineArgs(model="org/a-GGUF:Q4_K_M", revision="v2"), "h:1", "w")
    assert {"--model=org/a-GGUF:Q4_K_M", "--revision=v2"} <= set(argv)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("a.tensors", "{here}/a.tensors"),
        ("file://a.tensors", "{here}/a.tensors"),
        ("/models/a.tensors", "/models/a.tensors"),
        ("s3://bucket/a.tensors", "s3://bucket/a.tensors"),
        (3, 3),  # which the worker rejects
    ],
)
def test_the_file_of_tensorizer_has_an_absolute_path(
    uri: object, expected: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"load_format": "tensorizer"}
    engine = EngineArgs(model="demo", model_loader_extra_config={"tensorizer_uri": uri}, **options)
    config = worker_config_of(worker_command(engine, "h:1", "w")).model.model_loader_extra_config
    if isinstance(expected, str):
        expected = expected.format(here=tmp_path)
    assert config == {"tensorizer_uri": expected}


@pytest.mark.parametrize(
    ("cluster", "arguments", "device", "resources"),
    [
        (ON_GPUS, {}, "cuda", {"num_cpus": 1, "num_gpus": 1}),
        (ON_GPUS, {"num_threads": 4}, "cuda", {"num_cpus": 4, "num_gpus": 1}),
        (ON_GPUS, {"device": "cpu", "num_threads": 8}, "cpu", {"num_cpus": 8}),
        (ON_CPUS, {"num_threads": 8}, "cpu", {"num_cpus": 8}),
    ],
)
def test_resources_requested_from_ray(
    cluster: RayCluster, arguments: dict[str, Any], device: str, resources: dict[str, int]
) -> None:
    from taco_llm.supervisor.ray_replicas.replicas import ray_replicas

    workers: list[Any] = ray_replicas(EngineArgs(model="demo", **arguments), "h:1", 2, cluster)
    assert [worker.name for worker in workers] == ["worker-0", "worker-1"]
    for worker in workers:
        assert f"--device={device}" in worker._argv
        assert worker._resources == resources


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "cuda:1"}, "Ray chooses the GPU"),
        ({"device": "cpu"}, "need num_threads"),
        ({}, "need num_threads"),
    ],
)
def test_devices_that_cannot_be_requested_from_ray(arguments: dict[str, Any], message: str) -> None:
    from taco_llm.supervisor.ray_replicas.replicas import ray_replicas

    with pytest.raises(ConfigurationError, match=message):
        ray_replicas(EngineArgs(model="demo", **arguments), "h:1", 1, ON_CPUS)


def test_addresses_in_a_cluster() -> None:
    assert ON_CPUS.address(7100) == "10.0.0.1:7100"
    assert RayCluster("fd00::1", 0).address(7100) == "[fd00::1]:7100"


def test_ray_not_installed_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"needs Ray: pip install 'taco-llm\[ray\]'"):
        ray_cluster(tmp_path).__enter__()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "is an address for Ray Client"),
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: .*refused"),
        ("head", "no Ray cluster at head: "),
    ],
)
def test_an_unusable_cluster_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, message: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigurationError, match=message) as caught, ray_cluster(tmp_path):
        pass
    assert "\n" not in str(caught.value)


def test_a_failed_cluster_start_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    directory = tmp_path / ("x" * 100)  # no socket can be in it
    directory.mkdir()
    message = "cannot start a Ray cluster here: .*path length"
    with pytest.raises(ConfigurationError, match=message) as caught, ray_cluster(directory):
        pass
    assert "\n" not in str(caught.value)
