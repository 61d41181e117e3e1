from pathlib import Path

import pytest
import torch

from support.checkpoints import make_checkpoint
from support.paged import PagedRunner
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.backends.model_loading import load_step_model
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.backends.torch.weight_offload import num_host_layers
from taco_worker.devices.transfers import Transfers

GIB = 2**30


def load(path: Path, cpu_offload_gb: float = 0.0) -> TorchModel:
    model = ModelConfig(model=str(path), dtype="float32")
    config = WorkerConfig(model=model, cpu_offload_gb=cpu_offload_gb)
    loaded = load_step_model(config, None, Transfers(torch.device("cpu")))[1]
    assert isinstance(loaded, TorchModel)
    return loaded


@pytest.mark.parametrize("num_offloaded", [1, 2, 3, 4])
def test_offloaded_layers_compute_the_same(tmp_path: Path, num_offloaded: int) -> None:
    path = make_checkpoint(tmp_path, num_hidden_layers=4)
    plain = load(path)
    layer_bytes = sum(parameter.nbytes for parameter in plain.network.layers[0].parameters())
    offloaded = load(path, (num_offloaded + 0.5) * layer_bytes / GIB)
    storages = {p.untyped_storage().data_ptr() for p in offloaded.network.layers[-1].parameters()}
    assert len(storages) == 1  # of the buffer that the layer is copied into
    runners = PagedRunner(plain), PagedRunner(offloaded)
    for chunk in ({"a": [5, 6, 7, 8]}, {"a": [9], "b": [4, 3]}, {"a": [2], "b": [1]}):
        expected, actual = (runner.step(chunk) for runner in runners)
        for name, logits in expected.items():
            assert torch.equal(actual[name], logits)


def test_number_of_offloaded_layers() -> None:
    assert num_host_layers([10, 10, 10], 25) == 2
    assert num_host_layers([10, 10, 10], 30) == 3
    assert num_host_layers([10, 10, 10], 10**6) == 3
    with pytest.raises(ValueError, match=r"cpu_offload_gb of .* holds no layer"):
        num_host_layers([10, 10], 9)
