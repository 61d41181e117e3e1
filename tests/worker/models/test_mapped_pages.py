from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from taco_worker.models.tensor_files import iterate_tensors

NUM_TENSORS = 6
TENSOR_BYTES = 2**24


@pytest.mark.parametrize("form", ["safetensors", "bin", "bin from before torch 1.6"])
def test_read_tensors_are_released_and_can_be_read_again(tmp_path: Path, form: str) -> None:
    tensors = {f"t{i}": torch.full((TENSOR_BYTES // 4,), float(i)) for i in range(NUM_TENSORS)}
    path = tmp_path / ("model.safetensors" if form == "safetensors" else "model.bin")
    if form == "safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=form == "bin")
    del tensors

    process = psutil.Process()
    before = process.memory_info().rss
    kept = {}
    for name, tensor in iterate_tensors(path):
        kept[name] = (tensor, float(tensor.sum()))
    taken = process.memory_info().rss - before
    if form != "bin from before torch 1.6":  # it cannot be mapped
        assert taken < NUM_TENSORS * TENSOR_BYTES / 2
    for tensor, total in kept.values():
        assert float(tensor.sum()) == total
