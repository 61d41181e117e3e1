from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from taco_kernels.group_codes import GroupCodes
from taco_worker.models.plan.parameters import Fill, QuantizedMatrix
from taco_worker.models.quantized_matrices import QuantizedMatrices
from taco_worker.models.tensor_files import iterate_tensors
from taco_worker.quant.formats.gptq import GptqMatrix

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


class Codes:
    """A sink that takes codes, and counts their rows."""

    dtype, device = torch.bfloat16, torch.device("cpu")

    def __init__(self) -> None:
        self.num_rows = 0

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        raise AssertionError(parameter)

    def takes_codes(self, parameter: str) -> bool:
        return True

    def put_codes(self, parameter: str, start: int, codes: GroupCodes, expert: int | None) -> None:
        self.num_rows += codes.shape[0]


def resident_bytes(path: Path) -> int:
    """Memory of this process that holds pages of a file."""
    maps = psutil.Process().memory_maps(grouped=False)
    return sum(one.rss for one in maps if one.path == str(path))


def test_packed_tensors_are_released_when_their_matrix_is_stored(tmp_path: Path) -> None:
    n, k = 2**11, 2**12
    format_ = GptqMatrix(n, k, 4, 128)
    tensors = {
        "m.g_idx": torch.arange(k, dtype=torch.int32) // 128,
        "m.qweight": torch.zeros(k // 8, n, dtype=torch.int32),
        "m.qzeros": torch.full((k // 128, n // 8), 0x77777777, dtype=torch.int32),
        "m.scales": torch.ones(k // 128, n, dtype=torch.float16),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    matrix = QuantizedMatrix("m", None, format_)
    fill = Fill("w", None, 0, (), (), is_stacked=False, matrix=matrix, selects_rows=True)
    sink, matrices, read = Codes(), QuantizedMatrices(), {}
    for name, tensor in iterate_tensors(path):
        matrices.add(sink, [fill], name, tensor, path)
        read[name] = tensor
    assert sink.num_rows == n
    assert resident_bytes(path) < tensors["m.qweight"].nbytes / 8
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    assert resident_bytes(path) >= tensors["m.qweight"].nbytes
