"""Installs the training wheels in a clean environment and trains with them: `make check-images`,
which needs the network.
"""

import re
import sys
import zipfile
from pathlib import Path

import pytest

from support.clean_environments import UV, run, torch_source
from support.dockerfiles import ROOT

SCRIPT = """
import horovod.torch as hvd
import torch
import taco_train
hvd.init()
model = torch.nn.Linear(3, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
model(torch.full((2, 3), float(hvd.rank() + 1))).sum().backward()
optimizer.step()
gradient = model.weight.grad.tolist()
print(f"rank {hvd.rank()} of {hvd.size()}: {gradient} {taco_train.__path__[0]}")
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for project in ("train", "train/light_horovod"):
        run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT / project)
    return sorted(folder.glob("*.whl"))


def test_one_wheel_serves_all_pythons(wheels: list[Path]) -> None:
    horovod, train = wheels
    assert re.fullmatch(r"light_horovod-[\d.]+-py3-none-any\.whl", horovod.name)
    assert re.fullmatch(r"taco_train-[\d.]+-py3-none-linux_x86_64\.whl", train.name)
    files = [
        name for name in zipfile.ZipFile(train).namelist() if name.startswith("taco_train/lib/")
    ]
    assert files == ["taco_train/lib/libtaco_collective.so", "taco_train/lib/libtaco_emulation.so"]


def test_two_ranks_train_in_a_clean_environment(wheels: list[Path], tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    source = torch_source() | {"VIRTUAL_ENV": str(environment)}
    install: list[str | Path] = [
        UV,
        "pip",
        "install",
        "--quiet",
        "--constraint",
        ROOT / "constraints.txt",
    ]
    run(*install, *wheels, **source)
    installed = run(UV, "pip", "list", VIRTUAL_ENV=str(environment))
    assert not re.search(r"^(nvidia|triton|grpcio|taco-llm)", installed, re.MULTILINE)

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    variables = {"PATH": f"{environment}/bin:/usr/bin:/bin", "PYTHONPATH": ""}
    horovodrun = environment / "bin" / "horovodrun"
    printed = run(horovodrun, "-np", "2", "python", script, **variables)
    for rank in range(2):
        line = f"rank {rank} of 2: [[3.0, 3.0, 3.0]] {environment}"
        assert line in printed
    assert "[X] PyTorch" in run(horovodrun, "--check-build", **variables)
