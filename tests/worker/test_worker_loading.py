"""Loading a worker, whose weights are packed while torch is imported."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker import worker_loading
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.startup_checks import matrix_bytes
from taco_worker.worker_loading import pack_early

LOAD = """
import gc, sys
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker import worker_loading

worker_loading._MIN_BYTES = 1
config = WorkerConfig(model=ModelConfig(model=sys.argv[1]), scheduler="", device="cpu")
made = []

class Recorded(worker_loading.EarlyWeights):
    def __init__(self, *args):
        assert "torch" not in sys.modules
        super().__init__(*args)
        made.append(self)

worker_loading.EarlyWeights = Recorded
called = []

def before_weights():
    assert "torch" in sys.modules
    called.append(made[0].memory.holds(1))

worker_loading.load_worker(config, before_weights)
print(called, made[0].memory.holds(1), gc.get_freeze_count() > len(sys.modules))
"""


def configuration(model: Path, **options: object) -> WorkerConfig:
    return WorkerConfig(model=ModelConfig(model=str(model)), scheduler="", **options)  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


@pytest.fixture
def no_torch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported torch, whose models are all large.

    After the model has been made, which would import torch a second time.
    """
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(worker_loading, "_MIN_BYTES", 1)


def test_the_matrices_take_the_memory_after_torch_is_imported(model: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[True] False True\n", done.stderr


@pytest.mark.usefixtures("no_torch")
def test_there_is_as_much_memory_as_the_matrices_take(model: Path) -> None:
    config = configuration(model, device="cpu")
    early = pack_early(config)
    assert early is not None
    num_bytes = matrix_bytes(config, find_checkpoint(config.model))
    assert early.memory.take(num_bytes + num_bytes // 16) is not None


@pytest.mark.usefixtures("no_torch")
def test_none_for_a_gpu_or_a_model_that_cannot_be_read(model: Path, tmp_path: Path) -> None:
    assert pack_early(configuration(model, device="cuda")) is None
    assert pack_early(configuration(tmp_path / "none", device="cpu")) is None
    (model / "config.json").write_text("{}")
    assert pack_early(configuration(model, device="cpu")) is None


@pytest.mark.usefixtures("no_torch")
def test_none_where_an_adapter_will_change_the_weights(model: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 1}')
    config = configuration(model, device="cpu")
    assert pack_early(config) is not None
    wanted = replace(config.model, merge_lora=str(tmp_path))
    assert pack_early(replace(config, model=wanted)) is None


@pytest.mark.usefixtures("no_torch")
def test_none_on_a_machine_with_several_memory_nodes(model: Path, tmp_path: Path) -> None:
    config = configuration(model, device="cpu")
    for name in ("node0", "node1"):
        assert pack_early(config, tmp_path / "nodes") is not None
        (tmp_path / "nodes" / name).mkdir(parents=True)
    assert pack_early(config, tmp_path / "nodes") is None


def test_none_where_torch_is_imported_already_or_little_is_needed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(model, device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(worker_loading, "_MIN_BYTES", 1)
        assert pack_early(config) is None
    monkeypatch.delitem(sys.modules, "torch")
    assert pack_early(config) is None
