"""npcache: the tensors of .bin files, kept as NumPy files once for all processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.architectures.variant import token_sequences
from support.checkpoints import make_checkpoint
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.numpy_cache import iterate_numpy_file, numpy_files

TENSORS = {
    "a.weight": torch.randn(40, 50),
    "b.weight": torch.randn(64, 64).bfloat16(),
    "c/../d": torch.randn(3).half(),
    "e": torch.arange(5),
    "f": torch.tensor(2.5),
    "g": torch.randn(8, 8).to(torch.float8_e4m3fn),
    "h": torch.empty(0, 4),
}


def write(folder: Path, tensors: dict[str, Tensor] = TENSORS) -> list[Path]:
    file = folder / "pytorch_model.bin"
    torch.save(tensors, file)
    return [file]


def read(files: list[Path]) -> dict[str, Tensor]:
    return dict(pair for file in files for pair in iterate_numpy_file(file))


def test_tensors_of_all_types_come_back(tmp_path: Path) -> None:
    for _ in range(2):
        found = read(numpy_files(write(tmp_path)))
        assert found.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(found[name].float(), tensor.float())


def test_the_second_call_reads_no_bin_file(tmp_path: Path) -> None:
    files = write(tmp_path)
    first = numpy_files(files)
    times = os.stat(files[0])
    files[0].write_bytes(bytes(times.st_size))
    os.utime(files[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert numpy_files(files) == first
    assert torch.equal(read(first)["a.weight"], TENSORS["a.weight"])


def test_changed_files_are_converted_again(tmp_path: Path) -> None:
    numpy_files(write(tmp_path))
    changed = write(tmp_path, {"a.weight": torch.ones(7)})
    assert torch.equal(read(numpy_files(changed))["a.weight"], torch.ones(7))


def _convert(files: list[Path]) -> list[Path]:
    return numpy_files(files)


def test_processes_that_start_together_share_one_cache(tmp_path: Path) -> None:
    files = write(tmp_path)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(_convert, [files] * 3)
    assert found[0] == found[1] == found[2]
    assert read(found[0]).keys() == TENSORS.keys()
    (target,) = {file.parent for file in found[0]}
    assert {path.name for path in (tmp_path / "np").iterdir()} == {"lock", target.name}


def test_a_damaged_source_leaves_no_cache(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"\x80\x02}q\x00.")
    file.write_bytes(b"not a pickle")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        numpy_files([file])
    assert [path.name for path in (tmp_path / "np").iterdir()] == ["lock"]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01", None])
def test_a_damaged_cache_is_one_error(tmp_path: Path, content: bytes | None) -> None:
    file = next(one for one in numpy_files(write(tmp_path)) if one.name.startswith("a."))
    if content is None:
        np.save(file, np.array([{"an": "object"}]), allow_pickle=True)
    else:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot read .*a\.weight\.float32\.npy") as error:
        read([file])
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(tmp_path)

    def refuse(*args: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "np"))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with caplog.at_level(logging.WARNING, logger="taco.worker"):
        assert numpy_files(files) == files
    assert "npcache has no effect: cannot write" in caplog.text


@pytest.mark.parametrize("name", ["npcache", "np-cache"])
@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_models_are_the_same_from_the_cache(tmp_path: Path, name: str, serves: str) -> None:
    path = make_checkpoint(tmp_path / "model", weights="bin", dtype=torch.bfloat16)
    (ids,) = token_sequences((20,))
    logits = [
        PagedRunner(load_step_model(path, serves, load_format=one)).step({"a": ids})["a"]
        for one in ("pt", name, name)
    ]
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
