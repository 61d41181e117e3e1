"""Damaged GGUF files, from the header to the plan and the tensors: one line, in bounded time."""

from __future__ import annotations

import resource
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.architectures.variants import VARIANTS
from support.gguf_files.convert import write_gguf
from taco_worker.models.config import load_hf_config
from taco_worker.models.tensor_files import iterate_tensors
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.quant.gguf.checkpoint import open_checkpoint
from taco_worker.quant.gguf.model_directory import model_directory

_NAMES = (
    "llama-2-like",
    "deepseek-v3-like",
    "glm-4.5-like",
    "baichuan-7b-like",
    "phi-3.5-moe-like",
    "nemotron-nas-like",
    "mimo-v2-flash-like",
    "ernie-4.5-moe-like",
    "minicpm3-like",
)
_NUMBERS = (0, 1, 2, 3, 5, 31, 2**8, 2**16, 2**24, 2**31, 2**32 - 1, 2**48, 2**63, 2**64 - 1)
_FLOATS = (0.0, -1.0, 1e-45, 1e38, float("inf"), float("nan"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, int]]:
    """Content, and bytes of the header, by variant."""
    found = {}
    for name in _NAMES:
        folder = tmp_path_factory.mktemp(name)
        file = write_gguf(VARIANTS[name].make(folder / "hf"), folder / "m.gguf")
        first = min(one.start for one in open_checkpoint(file).tensors.values())
        found[name] = (file.read_bytes(), first)
    return found


def _use(file: Path, cache: Path) -> None:
    """What the supervisor and then a worker do with a file."""
    directory = model_directory(file, cache)
    config = load_hf_config(directory)
    check_weight_files(config)
    for weights in directory.glob("*.gguf"):
        for _ in iterate_tensors(weights):
            pass


def _message(file: Path, cache: Path) -> str | None:
    try:
        _use(file, cache)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", _NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_bytes(
    name: str,
    files: dict[str, tuple[bytes, int]],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    """Numbers, floats, texts and cuts anywhere in a header."""
    valid, header = files[name]
    content = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, header - 9))
        change = data.draw(
            st.one_of(
                st.sampled_from(_NUMBERS).map(lambda number: struct.pack("<Q", number)),
                st.sampled_from(_NUMBERS).map(lambda number: struct.pack("<Q", number)[:4]),
                st.sampled_from(_FLOATS).map(lambda number: struct.pack("<f", number)),
                st.binary(min_size=1, max_size=8),
                st.sampled_from((b"\n", b"\x00", b"\xff", b"blk.", b"weight", b"\xe2\x96\x81")),
            )
        )
        content[at : at + len(change)] = change
    if data.draw(st.integers(0, 9)) == 0:
        del content[data.draw(st.integers(0, len(content))) :]
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "m.gguf").write_bytes(bytes(content))
    started = time.process_time()
    message = _message(folder / "m.gguf", folder / "cache")
    assert message is None or "\n" not in message
    assert time.process_time() - started < 2


def _value_at(content: bytes, key: str) -> int:
    """Where the value of a key with one number starts."""
    encoded = key.encode()
    return content.index(struct.pack("<Q", len(encoded)) + encoded) + 8 + len(encoded) + 4


@pytest.mark.parametrize("name", _NAMES)
def test_every_count_that_is_false(
    name: str, files: dict[str, tuple[bytes, int]], tmp_path: Path
) -> None:
    """Each integer of the metadata at each extreme: no plan of a size that only a count gives."""
    valid, _ = files[name]
    (tmp_path / "m.gguf").write_bytes(valid)
    (header,) = open_checkpoint(tmp_path / "m.gguf").headers.values()
    prefix = header.metadata["general.architecture"] + "."
    keys = [
        key
        for key, value in header.metadata.items()
        if key.startswith(prefix) and isinstance(value, int) and not isinstance(value, bool)
    ]
    assert len(keys) > 5
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 2**19  # KiB
    for key in keys:
        at = _value_at(valid, key)
        for number in (0, 1, 2**20, 2**24, 2**31, 2**32 - 1):
            file = tmp_path / f"{key}-{number}.gguf"
            file.write_bytes(valid[:at] + struct.pack("<I", number) + valid[at + 4 :])
            started = time.process_time()
            message = _message(file, tmp_path / "cache")
            assert message is None or "\n" not in message, (key, number)
            assert time.process_time() - started < 2, (key, number)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < limit, (key, number)


@pytest.mark.parametrize(
    "count", [pytest.param(2**22, id="keys"), pytest.param(2**23 - 1, id="items")]
)
def test_memory_of_counts(count: int, tmp_path: Path) -> None:
    """What a small file counts is not allocated."""
    text = struct.pack("<Q", 1) + b"k"
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1 if count > 2**22 else count)
    content += text + struct.pack("<IIQ", 9, 8, count) + bytes(200)
    (tmp_path / "m.gguf").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"it counts|counts .* items in a file of"):
        open_checkpoint(tmp_path / "m.gguf")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def _file(values: dict[str, Any]) -> bytes:
    """A file of texts, lists of texts and 32-bit integers, without tensors."""

    def text(one: bytes) -> bytes:
        return struct.pack("<Q", len(one)) + one

    content = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    for key, value in values.items():
        content += text(key.encode())
        if isinstance(value, list):
            content += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        elif isinstance(value, int):
            content += struct.pack("<II", 4, value)
        else:
            content += struct.pack("<I", 8) + text(value)
    return content


@pytest.mark.parametrize(
    "texts",
    [
        [b"\xff\xfe", b"\x00", b"a\nb", b"\xed\xa0\x80", b""],
        [b"a"] * 1000,
        [b"x" * 2**20],
    ],
)
def test_texts_of_any_bytes(texts: list[bytes], tmp_path: Path) -> None:
    """Tokens are shown in errors escaped and cut."""
    values = {
        "general.architecture": b"llama",
        "tokenizer.ggml.model": b"gpt2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.merges": [b"a b", *texts],
        "llama.attention.head_count": 2,
        "llama.block_count": 1,
    }
    (tmp_path / "m.gguf").write_bytes(_file(values))
    message = _message(tmp_path / "m.gguf", tmp_path / "cache")
    assert message is not None
    assert message.isprintable()
    assert len(message) < 1000
