"""Headers of GGUF files: valid ones as gguf-py reads them, damaged ones with one clear line."""

from __future__ import annotations

import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from taco_worker.quant.gguf.checkpoint import open_checkpoint
from taco_worker.quant.gguf.header import GgufHeader, read_header


def _write(file: Path, tensors: dict[str, np.ndarray], **values: Any) -> Path:
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_token_list(["a", "b", "ü"])
    writer.add_array("numbers", [1.5, -2.5])
    for key, value in values.items():
        writer.add_uint32(key.replace("__", "."), value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("gguf") / "valid.gguf"
    generator = np.random.default_rng(0)
    tensors = {
        name: generator.standard_normal(shape).astype(np.float32)
        for name, shape in (("token_embd.weight", (4, 8)), ("blk.0.attn_norm.weight", (8,)))
    }
    return _write(file, tensors).read_bytes()


def _read(content: bytes, folder: Path) -> GgufHeader:
    file = folder / "model.gguf"
    file.write_bytes(content)
    return read_header(file)


def _message(content: bytes, folder: Path) -> str:
    with pytest.raises(ValueError, match="cannot read") as error:
        _read(content, folder)
    message = str(error.value)
    assert message.startswith(f"cannot read {folder / 'model.gguf'}: ")
    assert "\n" not in message
    return message


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _header(keys: list[bytes], tensors: list[bytes], *, version: int = 3) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(keys))
    return b"GGUF" + counts + b"".join(keys) + b"".join(tensors)


def _tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return _string(name) + sizes + struct.pack("<IQ", kind, offset)


def _padded(header: bytes, num_bytes: int) -> bytes:
    return header + bytes(-len(header) % 32) + bytes(num_bytes)


def test_content_is_that_of_gguf_py(valid: bytes, tmp_path: Path) -> None:
    header = _read(valid, tmp_path)
    wanted = GGUFReader(tmp_path / "model.gguf")
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "b", "ü"]
    assert header.metadata["numbers"] == [1.5, -2.5]
    assert list(header.tensors) == [one.name for one in wanted.tensors]
    for one in wanted.tensors:
        info = header.tensors[one.name]
        assert info.shape == tuple(int(size) for size in reversed(one.shape))
        assert (info.start, info.num_bytes) == (one.data_offset, one.n_bytes)


@pytest.mark.parametrize("kind", [k for k in GGUFValueType if k.name not in ("ARRAY", "STRING")])
def test_numbers_of_every_type(kind: GGUFValueType, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    value = True if kind is GGUFValueType.BOOL else 7
    writer.add_key_value("a", value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_header(tmp_path / "model.gguf").metadata["a"] == value


def test_alignment(tmp_path: Path) -> None:
    tensors = {"a": np.ones((1, 3), np.float32), "b": np.ones((2, 2), np.float32)}
    header = read_header(_write(tmp_path / "model.gguf", tensors))
    assert header.tensors["b"].start % 32 == 0
    key = _string("general.alignment") + struct.pack("<II", 4, 4)
    content = _header([key], [_tensor("a", (3,)), _tensor("b", (1,), offset=12)]) + bytes(32)
    infos = _read(content, tmp_path).tensors
    assert infos["b"].start == infos["a"].start + 12
    for wrong in (0, 3, 2**20):
        key = _string("general.alignment") + struct.pack("<II", 4, wrong)
        assert "general.alignment is" in _message(_header([key], []), tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"PK\3\4 something", "it is not a GGUF file"),
        (b"GGUF", "it ends inside its version"),
        (b"GGUF" + struct.pack("<I", 1), "it has version 1 of GGUF, and 2 and 3 are supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "byte order of another machine"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "it counts 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 9), "it counts 9 keys in a file of 24 bytes"),
        (_header([_string("k") + struct.pack("<I", 77)], []), "'k' has the unknown type 77"),
        (_header([_string("k") + struct.pack("<II", 4, 1)] * 2, []), "it has the key 'k' twice"),
        (_header([_string("k") + struct.pack("<IQ", 8, 2**40)], []), "16777216 are allowed"),
        (
            _header([_string("k") + struct.pack("<IIQ", 9, 4, 2**50)], []),
            "the value of 'k' counts 1125899906842624 items",
        ),
        (
            _header([_string("k") + struct.pack("<IIQ", 9, 8, 3) + bytes(24)], []) + b"xx",
            None,
        ),
        (
            _header([_string("k") + struct.pack("<IIQ", 9, 9, 0)], []),
            "'k' is a list of arrays",
        ),
        (
            _padded(_header([], [_tensor("t", (4,)), _tensor("t", (4,), offset=32)]), 64),
            "it has the tensor 't' twice",
        ),
        (
            _padded(_header([], [_tensor("t", (16,)), _tensor("u", (4,), offset=32)]), 96),
            "tensors 't' and 'u' overlap",
        ),
        (_padded(_header([], [_tensor("t", (4,), kind=77)]), 64), "'t': type 77 is unknown"),
        (_padded(_header([], [_tensor("t", (33,), kind=2)]), 64), r"invalid shape \[33\] of Q4_0"),
        (_padded(_header([], [_tensor("t", (0, 4))]), 64), r"'t' has the invalid shape \[0, 4\]"),
        (_padded(_header([], [_tensor("t", (2**40, 2**40))]), 64), "'t' has the invalid shape"),
        (_padded(_header([], [_tensor("t", (1,) * 5)]), 64), "'t' has 5 axes"),
        (_padded(_header([], [_tensor("t", (4,), offset=7)]), 64), "'t' starts at 7, not at a mul"),
        (_padded(_header([], [_tensor("t", (64,))]), 64), "'t' has 256 bytes from 64 on, and the"),
        (_padded(_header([], [_tensor("a\nb", (4,))]), 64), "cannot be printed"),
    ],
)
def test_damaged_headers(content: bytes, message: str | None, tmp_path: Path) -> None:
    if message is None:
        assert _read(content, tmp_path).metadata["k"] == ["", "", ""]
        return
    assert re.search(message, _message(content, tmp_path))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_headers_are_read_or_refused(
    valid: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Never another exception, more than a second, or memory beyond a few times the file's."""
    content = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        size = data.draw(st.sampled_from((1, 4, 8)))
        content[at : at + size] = data.draw(st.binary(min_size=size, max_size=size))
    del content[data.draw(st.integers(1, len(content))) :]
    file = tmp_path_factory.getbasetemp() / "mutated.gguf"
    file.write_bytes(bytes(content))
    started = time.process_time()
    tracemalloc.start()
    header, message = None, None
    try:
        header = read_header(file)
    except ValueError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if header is None:
        assert message is not None
        assert message.startswith(f"cannot read {file}: ")
        assert "\n" not in message
    else:
        ends = [info.start + info.num_bytes for info in header.tensors.values()]
        assert all(end <= len(content) for end in ends)
    assert peak < 2**20
    assert time.process_time() - started < 1


def test_files_of_one_model(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full((4,), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = sorted(tmp_path.glob("m-*.gguf"))
    assert len(files) == 3
    checkpoint = open_checkpoint(files[1])
    assert list(checkpoint.headers) == files
    assert sorted(checkpoint.tensors) == [f"t{i}" for i in range(5)]
    content = files[1].read_bytes()
    files[1].write_bytes(files[2].read_bytes())
    with pytest.raises(
        ValueError, match="says that it is file 2 of 3, counted from 0, and it is file 1 of 3"
    ):
        open_checkpoint(files[0])
    files[1].unlink()
    with pytest.raises(ValueError, match=r"one of 3 files, and m-00002-of-00003\.gguf is missing"):
        open_checkpoint(files[0])
    files[1].write_bytes(content)
    files[0].write_bytes(content.replace(b"general.architecture", b"general.architectura", 1))
    with pytest.raises(ValueError, match="says that it is file"):
        open_checkpoint(files[0])
