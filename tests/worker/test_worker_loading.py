"""Loading a worker, with memory for its weights that is touched while torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker import worker_loading
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.startup_checks import matrix_bytes
from taco_worker.worker_loading import early_weight_memory

LOAD = """
import sys
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker import worker_loading

worker_loading._MIN_BYTES = 1
config = WorkerConfig(model=ModelConfig(model=sys.argv[1]), scheduler="", device="cpu")
taken = []

class Recorded(worker_loading.EarlyMemory):
    def __init__(self, num_bytes, num_spare_bytes):
        assert "torch" not in sys.modules
        super().__init__(num_bytes, num_spare_bytes)

    def take(self, num_bytes):
        taken.append(super().take(num_bytes))
        return taken[-1]

worker_loading.EarlyMemory = Recorded
worker_loading.load_worker(config)
print([mapping is not None for mapping in taken])
"""


def configuration(model: Path, **options: object) -> WorkerConfig:
    return WorkerConfig(model=ModelConfig(model=str(model)), scheduler="", **options)  # type: ignore[arg-type]


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported torch, whose models are all large."""
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(worker_loading, "_MIN_BYTES", 1)


def test_the_matrices_take_the_memory(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path)
    command = [sys.executable, "-c", LOAD, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[True]\n", done.stderr


@pytest.mark.usefixtures("no_torch")
def test_as_much_is_touched_as_the_matrices_take(tmp_path: Path) -> None:
    config = configuration(make_checkpoint(tmp_path), device="cpu")
    memory = early_weight_memory(config)
    assert memory is not None
    num_bytes = matrix_bytes(config, find_checkpoint(config.model))
    assert memory.take(num_bytes + num_bytes // 16) is not None


@pytest.mark.usefixtures("no_torch")
def test_none_for_a_gpu_or_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    assert early_weight_memory(configuration(make_checkpoint(tmp_path), device="cuda")) is None
    assert early_weight_memory(configuration(tmp_path / "none", device="cpu")) is None
    (tmp_path / "config.json").write_text("{}")
    assert early_weight_memory(configuration(tmp_path, device="cpu")) is None


@pytest.mark.usefixtures("no_torch")
def test_none_on_a_machine_with_several_memory_nodes(tmp_path: Path) -> None:
    config = configuration(make_checkpoint(tmp_path / "model"), device="cpu")
    for name in ("node0", "node1"):
        assert early_weight_memory(config, tmp_path / "nodes") is not None
        (tmp_path / "nodes" / name).mkdir(parents=True)
    assert early_weight_memory(config, tmp_path / "nodes") is None


def test_none_where_torch_is_imported_already_or_little_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(make_checkpoint(tmp_path), device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(worker_loading, "_MIN_BYTES", 1)
        assert early_weight_memory(config) is None
    monkeypatch.delitem(sys.modules, "torch")
    assert early_weight_memory(config) is None
