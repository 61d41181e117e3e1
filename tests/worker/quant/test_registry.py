"""Names of methods, the files that hold their settings, and contradictions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import make_checkpoint
from taco_worker.models.config import load_hf_config
from taco_worker.quant.config_files import quantization_config
from taco_worker.quant.registry import quantization_names, read_quantization, stored_as

MXFP4 = {"quant_method": "mxfp4"}


def test_the_checkpoint_decides_where_nothing_is_wanted(tmp_path: Path) -> None:
    assert read_quantization(None, tmp_path, None) is None
    for wanted in (None, "mxfp4", "int8"):
        found = read_quantization(MXFP4, tmp_path, wanted)
        assert found is not None
        assert found.method == "mxfp4"


def test_int8_is_what_back_ends_store() -> None:
    assert (stored_as("int8"), stored_as(None), stored_as("mxfp4")) == ("int8", None, None)
    assert {"int8", "mxfp4"} <= set(quantization_names())


@pytest.mark.parametrize(
    ("config", "wanted", "message"),
    [
        (None, "mxfp4", "quantization 'mxfp4' needs a checkpoint that is quantized so"),
        (None, "none-such", "unknown quantization 'none-such'; known: "),
        ({"quant_method": "none-such"}, None, "the checkpoint is quantized (none-such), which is"),
        ({"bits": 4}, None, "the checkpoint is quantized (unknown), which is not supported"),
        (
            {"quant_method": "a\x1b[2J\nb"},
            None,
            r"the checkpoint is quantized ('a\x1b[2J\nb'),",
        ),
        ({"quant_method": ["gptq"]}, None, "the checkpoint is quantized (['gptq']), which is not"),
    ],
)
def test_contradictions_are_one_line(
    tmp_path: Path, config: dict[str, Any] | None, wanted: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"\A{re.escape(message)}[^\n]*\Z"):
        read_quantization(config, tmp_path, wanted)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
MARLIN = {**GPTQ, "checkpoint_format": "marlin"}
SPARSE = {**GPTQ, "checkpoint_format": "marlin_24"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
AUTO_ROUND = {**GPTQ, "quant_method": "intel/auto-round"}


@pytest.mark.parametrize(
    ("config", "wanted", "method"),
    [
        *[(GPTQ, wanted, "gptq") for wanted in (None, "gptq", "gptq_marlin")],
        *[(AWQ, wanted, "awq") for wanted in (None, "awq", "awq_marlin")],
        *[(MARLIN, wanted, "marlin") for wanted in (None, "gptq", "gptq_marlin", "marlin")],
        *[(SPARSE, wanted, "gptq_marlin_24") for wanted in (None, "gptq", "gptq_marlin_24")],
        ({**GPTQ, "quant_method": "marlin"}, "marlin", "marlin"),
        ({**GPTQ, "quant_method": "qqq"}, "qqq", "qqq"),
        (AUTO_ROUND, "auto-round", "auto-round"),
        ({**GPTQ, "quant_method": "auto-round"}, None, "auto-round"),
    ],
)
def test_names_that_fit_a_checkpoint(
    tmp_path: Path, config: dict[str, Any], wanted: str | None, method: str
) -> None:
    found = read_quantization(config, tmp_path, wanted)
    assert found is not None
    assert found.method == method


@pytest.mark.parametrize(
    ("config", "wanted", "message"),
    [
        *[
            (config, wanted, f"the checkpoint is quantized (bitsandbytes), which is not {wanted!r}")
            for config in (NF4, INT8)
            for wanted in ("int8", "tpu_int8", "neuron_quant", "gptq", "fp8", "experts_int8")
        ],
        (GPTQ, "bitsandbytes", "the checkpoint is quantized (gptq), which is not 'bitsandbytes'"),
        (GPTQ, "fp8", "the checkpoint is quantized (gptq), which is not 'fp8': leave out"),
        (GPTQ, "experts_int8", "the checkpoint is quantized (gptq), which is not 'experts_int8'"),
        (GPTQ, "deepspeedfp", "the checkpoint is quantized (gptq), which is not 'deepspeedfp'"),
        (GPTQ, "gguf", "the checkpoint is quantized (gptq), which is not 'gguf': leave out quant"),
        (GPTQ, "awq", "the checkpoint is quantized (gptq), which is not 'awq'"),
        (GPTQ, "marlin", "the checkpoint is quantized (gptq), which is not 'marlin'"),
        (AWQ, "gptq_marlin", "the checkpoint is quantized (awq), which is not 'gptq_marlin'"),
        (MARLIN, "gptq_marlin_24", "the checkpoint is quantized (marlin), which is not 'gptq_m"),
        (AUTO_ROUND, "gptq", "the checkpoint is quantized (auto-round), which is not 'gptq'"),
        ({"quant_method": ["gptq"]}, None, "the checkpoint is quantized (['gptq']), which is"),
    ],
)
def test_names_that_contradict_a_checkpoint(
    tmp_path: Path, config: dict[str, Any], wanted: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"\A{re.escape(message)}[^\n]*\Z"):
        read_quantization(config, tmp_path, wanted)


@pytest.mark.parametrize(
    ("name", "content", "method"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "modelopt"),
        ("quantize_config.json", {"bits": 4}, "gptq"),
        ("quantize_config.json", {"bits": 4, "quant_method": "marlin"}, "marlin"),
        ("quant_config.json", {"w_bit": 4}, "awq"),
        ("quant_config.json", {"bits": 6}, "deepspeedfp"),
    ],
)
def test_settings_may_be_in_a_separate_file(
    tmp_path: Path, name: str, content: dict[str, Any], method: str
) -> None:
    assert quantization_config(tmp_path, {}) is None
    (tmp_path / name).write_text(json.dumps(content))
    found = quantization_config(tmp_path, {})
    assert found is not None
    assert found["quant_method"] == method
    own = {"quant_method": "mxfp4"}
    for field in ("quantization_config", "compression_config"):
        assert quantization_config(tmp_path, {field: own}) == own


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    (path / "quantize_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"quantize_config\.json"):
        load_hf_config(path)
    (path / "hf_quant_config.json").write_text('{"quantization": "FP8"}')
    with pytest.raises(ValueError, match=r"hf_quant_config\.json: quantization must be an object"):
        load_hf_config(path)


def test_messages_name_the_file_of_a_setting(tmp_path: Path) -> None:
    (tmp_path / "quantize_config.json").write_text('{"bits": 5}')
    in_config = f"{tmp_path}/config.json: quantization_config"
    for fields, source in (
        ({}, "quantize_config.json"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 5}}, in_config),
    ):
        config = quantization_config(tmp_path, fields)
        with pytest.raises(ValueError, match=rf"\A{re.escape(source)}\.bits is 5; it must be"):
            read_quantization(config, tmp_path, None)
