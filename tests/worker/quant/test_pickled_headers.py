"""Headers of pickled weight files: what torch.save writes, and nothing else, is read."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taco_worker.models.tensor_files import dtype_name, iterate_tensors
from taco_worker.quant.pickled_headers import read_pickled_header

TENSORS: OrderedDict[str, Any] = OrderedDict(
    {
        "a.weight": torch.randn(4, 6).t(),
        "b": torch.nn.Parameter(torch.randn(8, 8).bfloat16()),
        "c": torch.arange(5),
        "d": torch.tensor(2.5).half(),
        "e": torch.empty(0, 3),
        "f": torch.randn(3, 5).to(torch.float8_e4m3fn),
        "g": torch.zeros(2, 3, dtype=torch.int32)[1:],
        "h": torch.zeros(3, dtype=torch.bool),
    }
)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("protocol", [2, 3])  # of others torch loads nothing
def test_headers_are_those_of_the_loaded_tensors(
    tmp_path: Path, is_zip: bool, protocol: int
) -> None:
    path = tmp_path / "x.bin"
    content: Any = torch.nn.ModuleDict({"l": torch.nn.Linear(3, 2)}).state_dict() | TENSORS
    if not is_zip:
        del content["f"]  # not possible before 1.6
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
    expected = {
        name: (tuple(tensor.shape), dtype_name(tensor)) for name, tensor in iterate_tensors(path)
    }
    found = read_pickled_header(path)
    assert {name: (one.shape, one.dtype) for name, one in found.items()} == expected
    assert len(expected) == len(content)


def error_of(path: Path) -> str:
    with pytest.raises(ValueError, match=r"\Acannot read .*") as error:
        read_pickled_header(path)
    assert "\n" not in str(error.value)
    return str(error.value)


class Command:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def archive(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", content)
    return path


@pytest.mark.parametrize("is_zip", [True, False])
def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_zip: bool) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.bin"
    torch.save({"a": Command()}, path, _use_new_zipfile_serialization=is_zip)
    assert "which no file of tensors needs" in error_of(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps([1]), "it holds a list instead of tensors by name"),
        (pickle.dumps({"a": 1}), "it holds a int under 'a'"),
        (pickle.dumps({3: 1}), "it holds a int under 3"),
        (pickle.dumps({"a": {1, 2}}), "the instruction EMPTY_SET"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "it is damaged"),
        (b"\x80\x02]2.", "the instruction DUP"),
        (b"\x80\x02}(]K\x01u.", "it has a key that is a list"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "cannot read"),
        (b"", "cannot read"),
    ],
)
def test_other_pickles_are_one_error(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in error_of(archive(tmp_path / "x.bin", content))


def test_a_pickle_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(2**26 + 1))
    assert "data.pkl has 67108865 bytes, more than 67108864" in error_of(path)


def test_contents_of_another_size_are_one_error(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    torch.save({"a": torch.zeros(4)}, path)
    short = tmp_path / "y.bin"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(short, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content[:8] if "/data/" in name else content)
    assert "the content of a has another size than its type and shape" in error_of(short)


CONTENTS: list[bytes] = []
for is_zip_file in (True, False):
    buffer = io.BytesIO()
    kept = {name: tensor for name, tensor in TENSORS.items() if is_zip_file or name != "f"}
    torch.save(kept, buffer, _use_new_zipfile_serialization=is_zip_file)
    CONTENTS.append(buffer.getvalue())


@settings(deadline=None, max_examples=150)
@given(
    number=st.integers(0, 1),
    place=st.integers(0, 3000),
    value=st.integers(0, 255),
    length=st.none() | st.integers(0, 9000),
)
def test_damaged_files_are_one_error_or_headers(
    number: int, place: int, value: int, length: int | None
) -> None:
    content = bytearray(CONTENTS[number])[:length]
    if place < len(content):
        content[place] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.bin"
        path.write_bytes(content)
        error = damage(path)
        assert error is None or (error.startswith(f"cannot read {path}: ") and "\n" not in error)


def damage(path: Path) -> str | None:
    try:
        read_pickled_header(path)
    except ValueError as error:
        return str(error)
    return None


def test_torch_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    torch.save(TENSORS, path)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from taco_worker.models.weight_files import stored_tensors\n"
        f"assert len(stored_tensors(Path({str(path)!r}))) == {len(TENSORS)}\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
