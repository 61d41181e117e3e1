"""Converted weights: the same bits as the model that they were made of, mapped, or one error."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.checkpoints import make_checkpoint
from support.cpu_kernels import NATIVE, kernels_of
from support.models import load_step_model
from support.paged import PagedRunner
from taco_llm.cli.main import main
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError
from taco_worker.backends.cpu.conversion import convert_model
from taco_worker.models.config import load_hf_config
from taco_worker.models.converted.header import matrices_file, rest_file
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.startup_checks import check_model

AGAIN = "run taco_llm convert again"
(IDS,) = token_sequences((24,))


def convert(
    path: Path,
    out: Path,
    quantization: str | None = None,
    dtype: str = "auto",
    isa: str = NATIVE[-1],
) -> Path:
    wanted = ModelConfig(model=str(path), dtype=dtype, quantization=quantization)
    assert convert_model(wanted, out, lambda: kernels_of(isa, 2)) > 0
    return out


def logits(path: Path, **settings: Any) -> Tensor:
    return PagedRunner(load_step_model(path, "kernels", **settings)).step({"a": IDS})["a"]


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    ["llama-2-like", "qwen2-like", "gpt2-like", "mixtral-8x7b-like", "deepseek-v2-lite-like"],
)
def test_converted_weights_have_the_same_bits(
    tmp_path: Path, name: str, dtype: str, quantization: str | None
) -> None:
    path = VARIANTS[name].make(tmp_path / "model")
    out = convert(path, tmp_path / "out", quantization, dtype)
    expected = logits(path, dtype=dtype, quantization=quantization)
    check_weight_files(load_hf_config(out, load_format="sharded_state"))
    assert torch.equal(logits(out, dtype="auto", load_format="sharded_state"), expected)
    actual = logits(out, dtype=dtype, quantization=quantization, load_format="sharded_state")
    assert torch.equal(actual, expected)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model whose matrices fill pages."""
    return make_checkpoint(
        tmp_path / "model", hidden_size=256, intermediate_size=512, dtype=torch.bfloat16
    )


def test_matrices_are_mapped_from_the_file(tmp_path: Path, large: Path) -> None:
    out = convert(large, tmp_path / "out")
    model = load_step_model(out, "kernels", dtype="auto", load_format="sharded_state")
    assert str(matrices_file(out)) in Path("/proc/self/maps").read_text()
    actual = PagedRunner(model).step({"a": IDS})["a"]
    assert torch.equal(actual, logits(large, dtype="auto"))


def test_models_do_not_change_the_file(tmp_path: Path, large: Path) -> None:
    out = convert(large, tmp_path / "out")
    before = matrices_file(out).read_bytes()
    logits(out, dtype="auto", load_format="sharded_state")
    assert matrices_file(out).read_bytes() == before


def test_the_command_makes_a_whole_model_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_checkpoint(tmp_path / "model")
    out = tmp_path / "out"
    flags = ["--out", str(out), "--quantization", "int8", "--num-threads", "1"]
    assert main(["convert", str(path), *flags]) == 0
    assert f"taco_llm serve {out}\n" in capsys.readouterr().out
    assert {file.name for file in path.iterdir()} - {file.name for file in out.iterdir()} == {
        "model.safetensors"
    }
    assert check_model(ModelConfig(model=str(out))).files.load_format == "sharded_state"
    assert torch.equal(logits(out), logits(path, quantization="int8"))


@pytest.mark.parametrize("load_format", ["safetensors", "pt", "mistral", "gguf"])
def test_converted_weights_have_no_other_format(tmp_path: Path, load_format: str) -> None:
    out = convert(make_checkpoint(tmp_path / "model"), tmp_path / "out")
    message = f"are converted: they need --load-format auto, not {load_format}"
    with pytest.raises(ConfigurationError, match=message):
        check_model(ModelConfig(model=str(out), load_format=load_format))


def test_the_settings_of_a_quantization_are_not_copied(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    (path / "quant_config.json").write_text(json.dumps({"bits": 6, "group_size": 64}))
    out = convert(path, tmp_path / "out")
    assert load_hf_config(out).quantization is None
    expected = logits(path, quantization="deepspeedfp")
    assert torch.equal(logits(out, load_format="sharded_state"), expected)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_all_files_follow_the_umask(tmp_path: Path, mask: int) -> None:
    path = make_checkpoint(tmp_path / "model")
    before = os.umask(mask)
    try:
        out = convert(path, tmp_path / "out")
    finally:
        os.umask(before)
    assert {file.name: file.stat().st_mode & 0o777 for file in out.iterdir()} == {
        file.name: 0o666 & ~mask for file in out.iterdir()
    }


def _change(out: Path, **changes: Any) -> None:
    header = out / "taco_weights.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel_hash": "0"}, "for the kernel hash 0, not .*; run taco_llm convert again"),
        ({"instruction_set": "none"}, "they are for the instruction set none, not"),
        ({"architecture": "OtherForCausalLM"}, "the architecture OtherForCausalLM, not Llama"),
        ({"version": 99}, "is of another version of TACO: run taco_llm convert again"),
        ({"num_matrix_bytes": 1}, r"taco_weights\.matrices is damaged: it has \d+ bytes"),
        ({"matrices": {"x": -1}}, "matrices is"),
        ({"matrices": {"x": 0}}, "the model has other matrices"),
        ({"matrices": {}}, "the model has other matrices"),
        ({"dtype": 3}, "dtype is '3'"),
        ({"more": 1}, "unknown fields more"),
    ],
)
def test_files_that_do_not_fit_are_one_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    out = convert(make_checkpoint(tmp_path / "model"), tmp_path / "out")
    _change(out, **changes)
    with pytest.raises(ValueError, match=message) as error:
        logits(out, dtype="auto", load_format="sharded_state")
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(AGAIN)


def test_another_shape_is_an_error(tmp_path: Path) -> None:
    out = convert(make_checkpoint(tmp_path / "model"), tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    with pytest.raises(ValueError, match="the model's matrices have other sizes"):
        logits(out, dtype="auto", load_format="sharded_state")


@pytest.mark.skipif(len(NATIVE) < 2, reason="this CPU has one instruction set")
def test_another_instruction_set_is_an_error(tmp_path: Path) -> None:
    out = convert(make_checkpoint(tmp_path / "model"), tmp_path / "out", isa=NATIVE[0])
    with pytest.raises(ValueError, match=f"instruction set {NATIVE[0]}, not {NATIVE[-1]}"):
        logits(out, dtype="auto", load_format="sharded_state")


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    with pytest.raises(ValueError, match=r"no converted weights in .*taco_llm convert MODEL --out"):
        logits(path, load_format="sharded_state")
    out = convert(path, tmp_path / "out")
    damaged = shutil.copytree(out, tmp_path / "damaged")
    rest_file(damaged).write_bytes(b"\0" * 20)
    with pytest.raises(ValueError, match=rf"cannot read .*taco_weights\.rest: .*; {AGAIN}"):
        logits(damaged, dtype="auto", load_format="sharded_state")
    (damaged / "taco_weights.json").unlink()
    for load_format in ("auto", "sharded_state"):
        with pytest.raises(ConfigurationError, match=rf"no taco_weights\.json; {AGAIN}"):
            check_model(ModelConfig(model=str(damaged), load_format=load_format))
    matrices_file(out).unlink()
    with pytest.raises(ConfigurationError, match=rf"no taco_weights\.matrices in .*: {AGAIN}"):
        check_model(ModelConfig(model=str(out), load_format="sharded_state"))


def test_contradictions_are_one_error(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    out = convert(path, tmp_path / "out", dtype="float32")
    with pytest.raises(ValueError, match="without --quantization, so 'int8' does not apply"):
        logits(out, load_format="sharded_state", quantization="int8")
    with pytest.raises(ValueError, match="for the dtype float32, not bfloat16"):
        logits(out, load_format="sharded_state", dtype="bfloat16")
    with pytest.raises(ValueError, match="are converted for the CPU kernels, which do not run"):
        load_step_model(out, "torch")
    with pytest.raises(ValueError, match="out is not empty: give a new directory"):
        convert(path, out)
    with pytest.raises(ValueError, match="out is converted already: serve it, or convert"):
        convert_model(
            ModelConfig(model=str(out)), tmp_path / "more", lambda: kernels_of(NATIVE[-1], 1)
        )
