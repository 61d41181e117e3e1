"""Headers of safetensors files: what the library refuses is refused without torch, in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from taco_worker.quant.safetensors_header import read_safetensors_header
from taco_worker.quant.safetensors_index import SafetensorsIndex

Header = dict[str, Any]
Change = Callable[[Header], object]


def _write(folder: Path) -> Path:
    tensors = {
        "a": torch.arange(6, dtype=torch.int32).view(2, 3),
        "b": torch.ones(4).to(torch.float8_e4m3fn),
        "c": torch.ones((), dtype=torch.bfloat16),
        "d": torch.empty(0, 5),
    }
    path = folder / "model.safetensors"
    save_file(tensors, path, {"format": "pt"})
    return path


def _change(path: Path, change: Change) -> None:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[start:])


def test_tensors_and_metadata(tmp_path: Path) -> None:
    header = read_safetensors_header(_write(tmp_path))
    assert header.metadata == {"format": "pt"}
    found = {name: (one.dtype, one.shape) for name, one in header.tensors.items()}
    assert found == {
        "a": ("I32", (2, 3)),
        "b": ("F8_E4M3", (4,)),
        "c": ("BF16", ()),
        "d": ("F32", (0, 5)),
    }
    assert header.tensors["a"].read() == torch.arange(6, dtype=torch.int32).numpy().tobytes()


def _set(**fields: Any) -> Change:
    return lambda header: header["a"].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(shape=[2.0, 3]), "the entry of 'a' is"),
        (_set(shape=["2", 3]), "the entry of 'a' is"),
        (_set(shape=[True, 3]), "the entry of 'a' is"),
        (_set(shape=[-2, -3]), "the entry of 'a' is"),
        (_set(shape=None), "the entry of 'a' is"),
        (_set(dtype=["I32"]), "the entry of 'a' is"),
        (_set(dtype="I33"), "'a' has the unknown type 'I33'"),
        (_set(shape=[2, 2]), r"'a' is I32 \[2, 2\], and has 24 bytes"),
        (_set(dtype="F64"), r"'a' is F64 \[2, 3\], and has 24 bytes"),
        (_set(data_offsets=[24, 0]), "the data_offsets of 'a' are"),
        (_set(data_offsets=[0, 24, 24]), "the data_offsets of 'a' are"),
        (_set(data_offsets=[-24, 0]), "the entry of 'a' is"),
        (_set(data_offsets=["0", "24"]), "the entry of 'a' is"),
        (lambda header: header.update(a=None), "the entry of 'a' is None"),
        (lambda header: header["c"].update(data_offsets=[22, 24]), "does not begin where"),
        (lambda header: header["__metadata__"].update(x=1), "the metadata of its header"),
        (lambda header: header.update(__metadata__=[1]), "the metadata of its header"),
    ],
)
def test_damaged_entries(tmp_path: Path, change: Change, message: str) -> None:
    path = _write(tmp_path)
    _change(path, change)
    with pytest.raises(ValueError, match=rf"model\.safetensors[^\n]*{message}[^\n]*\Z"):
        read_safetensors_header(path)
    with pytest.raises(SafetensorError), safe_open(path, framework="pt"):
        pass


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "a header of 0 bytes in a file of 0 bytes|not valid JSON"),
        (5, r"a header of \d+ bytes in a file of 5 bytes"),
        (40, r"a header of \d+ bytes in a file of 40 bytes"),
        (-1, r"is cut off: its header asks for \d+ bytes, the file has \d+"),
    ],
)
def test_truncated_files(tmp_path: Path, size: int, message: str) -> None:
    path = _write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:size])
    with pytest.raises(ValueError, match=message):
        read_safetensors_header(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match="is too long"):
        read_safetensors_header(path)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_any_damage_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever this reader accepts, the library accepts too."""
    path = _write(tmp_path_factory.mktemp("model"))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    message = ""
    names: set[str] = set()
    try:
        names = set(read_safetensors_header(path).tensors)
    except ValueError as error:
        message = str(error)
    if message:
        assert "\n" not in message
        assert str(path) in message
        return
    with safe_open(path, framework="pt") as file:
        assert set(file.keys()) == names


def test_only_the_files_of_the_model_are_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({name: torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    (tmp_path / "old.safetensors").write_bytes(b"damaged")
    assert SafetensorsIndex.of(tmp_path).tensors.keys() == set()
    for name in ("gptq_model-4bit-64g", "consolidated-00001-of-00001", "consolidated", "model"):
        save_file({name: torch.zeros(1)}, tmp_path / f"{name}.safetensors")
        assert SafetensorsIndex.of(tmp_path).tensors.keys() == {name}
    assert SafetensorsIndex.of(tmp_path).tensors.keys() == {"model"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    assert SafetensorsIndex.of(tmp_path).tensors.keys() == {"a", "b"}
    index.write_text("{}")
    with pytest.raises(ValueError, match=r"\A[^\n]*index\.json is not an index of weight files"):
        SafetensorsIndex.of(tmp_path)
