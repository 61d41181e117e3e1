"""Pages of docs/train: scripts and commands run, command lines and manifests are valid."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes_schemas import NEWEST, OLDEST, mistakes
from support.page_snippets import Snippet, snippets
from support.patience import PATIENCE_SECONDS
from support.ray_nodes import THRIFTY
from taco_train.lightcc.launcher.host_slots import HostSlots, parse_hosts
from taco_train.lightcc.launcher.options import Options, make_parser, read_options
from taco_train.lightcc.settings import Settings, settings_from
from taco_train.lightcc.variables import VARIABLES, WITHOUT_MEANING

pytestmark = [pytest.mark.process, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "docs" / "train"
SNIPPETS = {
    name: list(snippets(FOLDER / f"{name}.md")) for name in ("index", "hosts", "cost-model")
}
ALL = [one for page in SNIPPETS.values() for one in page]
SCRIPTS = {one.argument: one.text for one in ALL if one.kind == "script"}
# What each command prints; the loss is some 4 before.
RESULTS = {
    "horovodrun -np 2 python train_horovod.py": r"2 ranks, loss ([01]\.\d+)",
    "torchrun --nproc-per-node 2 train_ddp.py": r"2 ranks, loss ([01]\.\d+)",
    "torchrun --nproc-per-node 2 train_fsdp.py": r"2 ranks, loss ([01]\.\d+)",
    "python train_ray.py": r"^\[([01]\.\d+), [01]\.\d+\]$",
}


def texts(page: str, kind: str) -> list[str]:
    return [one.text.strip() for one in SNIPPETS[page] if one.kind == kind]


def words(line: str) -> list[str]:
    return shlex.split(line.replace("\\\n", " "))


def run(command: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    # Ray keeps sockets there, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="taco-ray-", ignore_cleanup_errors=True) as short:
        result = subprocess.run(
            ["bash", "-ec", command],
            cwd=folder,
            env={
                **os.environ,
                **(environment or {}),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **THRIFTY,
                "RAY_TMPDIR": short,
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": "f3a1" * 16,  # else Ray makes one in the home directory
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize("command", RESULTS)
def test_a_script_of_the_quick_start_learns(command: str, tmp_path: Path) -> None:
    assert command in texts("index", "command")
    assert re.findall(RESULTS[command], run(command, tmp_path), re.MULTILINE)


def test_compression_sends_less(tmp_path: Path) -> None:
    emulated = [one for one in texts("index", "command") if "emulate" in one]
    assert {*emulated, *RESULTS} == set(texts("index", "command"))
    # No choice is left, so the cost model sends nothing to measure the link.
    fixed = {"LIGHT_2D_ALLREDUCE": "1", "HOROVOD_FUSION_THRESHOLD": str(2**26)}
    outputs = (run(one, tmp_path, fixed) for one in emulated)
    sent = [re.findall(r"host0: sent ([\d,]+) bytes", output)[0] for output in outputs]
    dense, compressed = (int(one.replace(",", "")) for one in sent)
    assert dense > 100 * 4 * 16_897
    assert compressed < dense / 2  # most of it is negotiation, which takes longer on busy machines


def test_the_log_of_the_cost_model(tmp_path: Path) -> None:
    """Its lines have the form of those of the page."""
    (command,) = texts("cost-model", "command")
    (shown,) = (one for one in ALL if one.kind == "log")
    assert form(shown.text) <= form(run(command, tmp_path))


def form(log: str) -> set[str]:
    """The first words of each line that begins with the rank."""
    lines = re.findall(r"^\[0\] INFO \[taco_train\.([\w.]+)\] (.*)$", log, re.MULTILINE)
    return {f"{module} {re.sub(r'[0-9.]+', '', text)[:12]}" for module, text in lines}


def test_the_elastic_script(tmp_path: Path) -> None:
    (command,) = texts("hosts", "elastic")
    assert "2 ranks, 200 steps, loss 0." in run(command, tmp_path)


@pytest.mark.parametrize("line", texts("hosts", "horovodrun"))
def test_a_line_of_horovodrun(line: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("gpu1 slots=8\ngpu2 slots=8\n")
    arguments = [str(tmp_path / one) if one == "hosts.txt" else one for one in words(line)[1:]]
    options = read_options(make_parser(), arguments)
    assert isinstance(options, Options)
    assert options.hosts == (HostSlots("gpu1", 8), HostSlots("gpu2", 8))
    assert (options.num_ranks, options.command) == (16, ("python", "train.py"))


def test_the_line_of_mpirun() -> None:
    found = words(texts("hosts", "mpirun")[0])
    passed = [value for flag, value in pairwise(found) if flag == "-x"]
    variables = dict(one.split("=") for one in passed if "=" in one)
    assert variables.keys() <= {one.name for one in VARIABLES} | WITHOUT_MEANING.keys()
    assert settings_from(variables) == Settings(
        two_level=True,
        intra_size=8,
        top_k=True,
        top_k_min_bytes=2**21,
        fusion_bytes=0,
        cycle_seconds=0.0,
    )
    hosts = parse_hosts(found[found.index("-H") + 1])
    assert sum(host.slots for host in hosts) == int(found[found.index("-np") + 1])


def test_the_line_of_torchrun() -> None:
    from torch.distributed.run import parse_args

    parsed = parse_args(words(texts("hosts", "torchrun")[0])[1:])
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.master_port) == ("2", "8", 29500)


def job() -> dict[str, Any]:
    (manifest,) = (one for one in SNIPPETS["hosts"] if one.kind == "mpijob")
    assert isinstance(manifest, Snippet)
    loaded: dict[str, Any] = yaml.safe_load(manifest.text)
    return loaded


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("role", ["Launcher", "Worker"])
def test_pods_of_the_mpijob_are_valid(role: str, version: str) -> None:
    pod = job()["spec"]["mpiReplicaSpecs"][role]["template"]
    assert mistakes({"apiVersion": "v1", "kind": "Pod", "metadata": {}, **pod}, version) == []


def test_the_launcher_of_the_mpijob(tmp_path: Path) -> None:
    """Its command line is read with the host file of the MPI operator."""
    spec = job()["spec"]
    slots, replicas = spec["slotsPerWorker"], spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    names = [f"taco-train-worker-{index}.taco-train.default.svc" for index in range(replicas)]
    (tmp_path / "hostfile").write_text("".join(f"{name} slots={slots}\n" for name in names))
    (container,) = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    command = [*container["command"], *container["args"]]
    command[command.index("/etc/mpi/hostfile")] = str(tmp_path / "hostfile")
    options = read_options(make_parser(), command[1:])
    assert isinstance(options, Options)
    assert options.hosts == tuple(HostSlots(name, slots) for name in names)
    assert options.num_ranks == slots * replicas
    settings_from({one["name"]: one["value"] for one in container["env"]})


@pytest.mark.parametrize("text", [one.text for one in snippets(FOLDER / "compression.md")])
def test_names_of_the_page_on_compression(text: str) -> None:
    tree = ast.parse(text)
    for statement in (one for one in tree.body if isinstance(one, ast.ImportFrom)):
        exec(ast.unparse(statement), {})
