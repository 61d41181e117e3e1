"""The model directory that is made of GGUF files."""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from support.architectures.variants import VARIANTS
from support.checkpoints import make_checkpoint
from support.gguf_files.convert import write_gguf
from taco_worker.models.config import load_hf_config
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.quant.gguf.checkpoint import GgufCheckpoint, check_parts, open_checkpoint
from taco_worker.quant.gguf.header import GgufHeader
from taco_worker.quant.gguf.model_directory import directory_files, model_directory


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    source = VARIANTS["llama-2-like"].make(folder / "hf", hidden_size=96, intermediate_size=96)
    return write_gguf(source, folder / "tiny.gguf", "Q8_0")


def test_files_of_the_directory(file: Path, tmp_path: Path) -> None:
    directory = model_directory(file, tmp_path)
    assert sorted(one.name for one in directory.iterdir()) == [
        "config.json",
        "generation_config.json",
        "tiny.gguf",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (directory / "tiny.gguf").samefile(file)
    source = json.loads((file.parent / "hf" / "config.json").read_text())
    config = json.loads((directory / "config.json").read_text())
    for name in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "rope_theta", "vocab_size"):
        assert config[name] == source[name]
    generation = json.loads((directory / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "eos_token_id": [1, 2]}
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    wanted = json.loads((file.parent / "hf" / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == wanted["chat_template"]
    assert (settings["bos_token"], settings["eos_token"]) == ("<|bos|>", "<|eos|>")


def test_it_is_made_once_for_each_state_of_the_file(file: Path, tmp_path: Path) -> None:
    first = model_directory(file, tmp_path)
    inode = (first / "config.json").stat().st_ino
    assert model_directory(file, tmp_path) == first
    assert (first / "config.json").stat().st_ino == inode
    copied = tmp_path / "tiny.gguf"
    copied.write_bytes(file.read_bytes())
    other = model_directory(copied, tmp_path / "cache")
    assert other.name != first.name
    os.utime(copied, ns=(1, 1))
    assert model_directory(copied, tmp_path / "cache") != other


def test_processes_make_it_at_the_same_time(file: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        directories = set(pool.map(model_directory, [file] * 8, [tmp_path / "cache"] * 8))
    assert len(directories) == 1
    assert [one.name for one in (tmp_path / "cache").iterdir()] == [directories.pop().name]


def test_a_file_that_changes_later_is_refused(file: Path, tmp_path: Path) -> None:
    copied = tmp_path / "tiny.gguf"
    copied.write_bytes(file.read_bytes())
    directory = model_directory(copied, tmp_path / "cache")
    load_hf_config(directory)
    copied.write_bytes(file.read_bytes().replace(b"llama.block_count", b"llama.block_countx"[:17]))
    load_hf_config(directory)  # the same bytes
    copied.write_bytes(file.read_bytes().replace(b"general.type", b"general.tipe"))
    with pytest.raises(ValueError, match=r"tiny\.gguf has changed since .* start again"):
        load_hf_config(directory)


def test_several_files(tmp_path: Path) -> None:
    source = VARIANTS["llama-2-like"].make(tmp_path / "hf")
    first = write_gguf(source, tmp_path / "m.gguf", max_tensors=5)
    assert first.name.startswith("m-00001-of-")
    directory = model_directory(first, tmp_path / "cache")
    assert len(list(directory.glob("*.gguf"))) == int(first.stem[-5:]) > 2
    check_weight_files(load_hf_config(directory))


def _written(file: Path, architecture: str, **keys: str) -> Path:
    writer = GGUFWriter(file, architecture)
    for key, value in keys.items():
        writer.add_string(key.replace("__", "."), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("whisper", {}, "the architecture 'whisper' is not supported; known: afmoe, arcee, "),
        ("llama", {}, r"it has no key 'llama\.attention\.head_count'"),
        ("llama", {"llama__attention__head_count": "x"}, "must be a positive integer, not 'x'"),
    ],
)
def test_models_that_are_not_supported(
    architecture: str, keys: dict[str, str], message: str, tmp_path: Path
) -> None:
    file = _written(tmp_path / "bad.gguf", architecture, **keys)
    with pytest.raises(ValueError, match=message) as error:
        model_directory(file, tmp_path / "cache")
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache").exists()


def test_unknown_pre_tokenizer(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "bad.gguf", pre="new-bpe")
    with pytest.raises(ValueError, match="the pre-tokenizer 'new-bpe' is not supported; known: "):
        model_directory(file, tmp_path / "cache")


def test_cache_that_cannot_be_written(file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="set XDG_CACHE_HOME to another folder"):
        model_directory(file, tmp_path / "file" / "cache")


_VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 7, 2**31, 2**63, True, False, 0.0, -1.5, float("nan"), float("inf"), 1e30),
    *("", "x", "gpt2", [], [1], [0, 3, 4] * 3, [1.5], ["a", "a"], ["b c"]),
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_metadata_is_read_or_refused(file: Path, data: st.DataObject) -> None:
    """Never another exception than one with one line."""
    checkpoint = open_checkpoint(file)
    (header,) = checkpoint.headers.values()
    keys = [*sorted(header.metadata), *_OTHER_KEYS]
    changed = dict(header.metadata)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.booleans()):
            changed[key] = data.draw(st.sampled_from(_VALUES))
        else:
            changed.pop(key, None)
    tensors = dict(header.tensors)
    for _ in range(data.draw(st.integers(0, 2))):
        name = data.draw(st.sampled_from(sorted(tensors)))
        info = tensors.pop(name)
        if data.draw(st.booleans()):
            shape = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=4))
            tensors[name] = replace(info, shape=tuple(shape))
    other = GgufHeader(changed, tensors, header.digest)
    try:
        files = directory_files(GgufCheckpoint({file: other}))
    except ValueError as error:
        message = str(error)
    else:
        message = ""
        assert json.loads(json.dumps(files))["config.json"]["architectures"]
    assert "\n" not in message


_OTHER_KEYS = (
    *("general.alignment", "split.count", "split.no", "split.tensors.count", "llama.expert_count"),
    *("llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.attention.key_length"),
    *("llama.rope.scaling.original_context_length", "llama.attention.value_length"),
    *("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.scores"),
    *("tokenizer.ggml.add_space_prefix", "tokenizer.ggml.precompiled_charsmap"),
    *("tokenizer.ggml.eot_token_id", "tokenizer.chat_template", "tokenizer.ggml.model"),
)


@pytest.mark.parametrize("key", ["split.count", "split.no", "split.tensors.count"])
def test_split_keys_of_any_type(key: str, file: Path) -> None:
    (header,) = open_checkpoint(file).headers.values()
    messages = []
    for value in _VALUES:
        other = replace(header, metadata={**header.metadata, key: value})
        try:
            check_parts({file: other})
        except ValueError as error:
            messages.append(str(error))
    assert messages
    assert all(message.startswith(str(file)) and "\n" not in message for message in messages)
