"""tensorizer: files of its layout are read without the package; others are one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from support.architectures.variant import token_sequences
from support.checkpoints import make_checkpoint
from support.models import load_step_model
from support.packing.tensorizer import write
from support.paged import PagedRunner
from taco_proto.config import ModelConfig
from taco_worker.models.load_format import tensorizer_file_of
from taco_worker.models.tensorizer_file import iterate_tensorizer_file

TENSORS = {
    "a.weight": torch.randn(4, 6),
    "b": torch.randn(8, 8).bfloat16(),
    "c": torch.arange(5),
    "d": torch.tensor(2.5).half(),
    "e": torch.empty(0, 3),
    "f": torch.randn(3, 5).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("flags", [0, 2])
def test_tensors_of_all_types_are_read(tmp_path: Path, flags: int) -> None:
    found = dict(iterate_tensorizer_file(write(tmp_path / "x", TENSORS, flags=flags)))
    assert list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].float(), tensor.float())


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_a_model_has_the_logits_of_its_safetensors(tmp_path: Path, serves: str) -> None:
    path = make_checkpoint(tmp_path / "model")
    (ids,) = token_sequences((20,))
    expected = PagedRunner(load_step_model(path, serves)).step({"a": ids})["a"]
    write(path / "model.tensors", load_file(path / "model.safetensors"))
    (path / "model.safetensors").unlink()
    model = load_step_model(path, serves, load_format="tensorizer")
    assert torch.equal(PagedRunner(model).step({"a": ids})["a"], expected)


@settings(deadline=None, max_examples=200)
@given(place=st.integers(0, 400), value=st.integers(0, 255), length=st.integers(0, 1000))
def test_damaged_files_are_one_error_or_tensors(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, length: int
) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / "x", TENSORS)
    content = bytearray(path.read_bytes())[:length]
    if place < len(content):
        content[place] = value
    path.write_bytes(content)
    error = _error_of(path)
    assert error is None or (error.startswith(f"cannot read {path}: ") and "\n" not in error)


def _error_of(path: Path) -> str | None:
    try:
        list(iterate_tensorizer_file(path))
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flags": 3}, "it is encrypted, which is not supported"),
        ({"version": 6}, "version 6 of tensorizer's files is not supported"),
        ({"flags": 4}, "of tensorizer's files is not supported"),
    ],
)
def test_other_files_are_named(tmp_path: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(iterate_tensorizer_file(write(tmp_path / "x", TENSORS, **options)))


def _wanted(load_format: str, options: Any) -> ModelConfig:
    return ModelConfig(model="m", load_format=load_format, model_loader_extra_config=options)


def test_the_file_may_be_anywhere_on_this_machine() -> None:
    for uri in ("/a/b.tensors", "file:///a/b.tensors"):
        found = tensorizer_file_of(_wanted("tensorizer", {"tensorizer_uri": uri}))
        assert found == Path("/a/b.tensors")
    assert tensorizer_file_of(_wanted("tensorizer", None)) is None
    assert tensorizer_file_of(_wanted("auto", {})) is None


@pytest.mark.parametrize(
    ("load_format", "options", "message"),
    [
        ("auto", {"a": 1}, "load format auto has no further options: .* has a"),
        ("tensorizer", {"a": 1}, "unknown options of tensorizer: a; known: tensorizer_uri"),
        ("tensorizer", {"tensorizer_uri": "s3://x"}, "must be a file on this machine, not 's3"),
        ("tensorizer", {"tensorizer_uri": 3}, "must be a file on this machine, not 3"),
    ],
)
def test_wrong_options_are_one_error(load_format: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tensorizer_file_of(_wanted(load_format, options))
