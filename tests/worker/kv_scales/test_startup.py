"""Scales of a float8 KV cache are checked before any process starts, without torch."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.checkpoints import make_checkpoint
from support.kv_scales import add_tensors, scales_content, write_scales_file
from support.packing import tensorizer
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker.startup_checks import check_kv_scales, check_model

BOTH: dict[str, float | list[float]] = {
    "0.self_attn.k_scale": 0.03,
    "0.self_attn.v_scale": [0.02],
    "1.self_attn.attn.k_scale": 0.01,
    "1.self_attn.v_proj.output_scale": 0.05,
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def check(
    checkpoint: Path,
    *,
    kv_cache_dtype: str = "fp8",
    path: Path | None = None,
    load_format: str = "auto",
) -> None:
    wanted = ModelConfig(model=str(checkpoint), load_format=load_format)
    config = WorkerConfig(
        model=wanted,
        kv_cache_dtype=kv_cache_dtype,
        quantization_param_path=None if path is None else str(path),
    )
    check_kv_scales(config, check_model(wanted))


def refusal(checkpoint: Path, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        check(checkpoint, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def changed(change: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    content = copy.deepcopy(scales_content([0.5, 0.25]))
    target: Any = content
    for key in place:
        target = target[key]
    target.update(change)
    return content


def test_a_file_that_fits(checkpoint: Path, tmp_path: Path) -> None:
    path = write_scales_file(tmp_path / "scales.json", scales_content([0.5, 1]))
    check(checkpoint, path=path)
    e5m2 = scales_content([0.5, 1])
    e5m2["kv_cache"]["dtype"] = "float8_e5m2"
    check(checkpoint, path=write_scales_file(path, e5m2), kv_cache_dtype="fp8_e5m2")
    without_type = scales_content([0.5, 1], model_type=None)
    check(checkpoint, path=write_scales_file(path, without_type))


FACTORS = ("kv_cache", "scaling_factor", "0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "it is not a JSON object"),
        ({}, "kv_cache must be an object, not None"),
        (changed({"kv_cache": 3}, ()), "kv_cache must be an object, not 3"),
        (changed({"model_type": "qwen2"}, ()), "a model of type 'qwen2', not 'llama'"),
        (changed({"dtype": "float8_e5m2"}, FACTORS[:1]), "dtype is 'float8_e5m2', and the KV"),
        (changed({"dtype": 8}, FACTORS[:1]), "dtype is 8, and the KV cache is float8_e4m3fn"),
        (changed({"scaling_factor": [1]}, FACTORS[:1]), "scaling_factor must be an object, not"),
        (changed({"1": {}}, FACTORS[:2]), "has the ranks '0', '1'; a worker runs the whole"),
        (changed({"scaling_factor": {}}, FACTORS[:1]), "has the ranks none; a worker runs the"),
        (changed({"0": 0.5}, FACTORS[:2]), "scaling_factor.0 must be an object, not 0.5"),
        (scales_content([0.5]), "lacks the scales of layer 1"),
        (scales_content([]), "lacks the scales of layers 0, 1"),
        (scales_content([0.5] * 3), "has scales of layer 2, and the model has 2 layers"),
        (changed({"x": 1.0}, FACTORS), "'x' is no number of a layer"),
        (changed({"01": 1.0}, FACTORS), "'01' is no number of a layer"),
        (changed({"1": "0.5"}, FACTORS), "layer 1 must be a number, not '0.5'"),
        (changed({"1": True}, FACTORS), "layer 1 must be a number, not True"),
        (changed({"1": None}, FACTORS), "layer 1 must be a number, not None"),
        (changed({"1": 0}, FACTORS), "of layer 1 is 0, which is no finite positive scale"),
        (changed({"1": -0.5}, FACTORS), "of layer 1 is -0.5, which is no finite positive scale"),
        (changed({"1": float("nan")}, FACTORS), "of layer 1 is nan, which is no finite"),
        (changed({"1": float("inf")}, FACTORS), "of layer 1 is inf, which is no finite"),
        (changed({"1": 1e-40}, FACTORS), "of layer 1 is 1e-40, which is no finite"),
        (changed({"1": 10**400}, FACTORS), "of layer 1 is inf, which is no finite"),
    ],
)
def test_bad_files(checkpoint: Path, tmp_path: Path, content: object, message: str) -> None:
    path = write_scales_file(tmp_path / "scales.json", content)
    error = refusal(checkpoint, path=path)
    assert str(path) in error
    assert message in error


def test_a_missing_or_damaged_file(checkpoint: Path, tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    assert refusal(checkpoint, path=missing) == f"cannot read {missing}: No such file"
    missing.write_text("{")
    assert "it is not valid JSON" in refusal(checkpoint, path=missing)
    assert refusal(checkpoint, path=tmp_path) == f"cannot read {tmp_path}: Is a directory"


def test_a_file_is_not_read_for_another_kv_cache(checkpoint: Path, tmp_path: Path) -> None:
    for kv_cache_dtype in ("auto", "bfloat16", "int8"):
        check(checkpoint, path=tmp_path / "none.json", kv_cache_dtype=kv_cache_dtype)


def test_scales_of_the_checkpoint(checkpoint: Path) -> None:
    add_tensors(checkpoint, BOTH)
    check(checkpoint)
    check(checkpoint, kv_cache_dtype="auto")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"1.self_attn.kv_scale": 1.0}, "lacks the scales of layer 0"),
        ({**BOTH, "2.self_attn.kv_scale": 1.0}, "has scales of layer 2, and the model has 2"),
        ({**BOTH, "0.self_attn.attn.k_scale": 1.0}, "has two scales of the same numbers"),
        (
            {**BOTH, "1.self_attn.attn.k_scale": [1.0, 2.0]},
            "must be one number, not [2]: ",
        ),
        (
            {name: BOTH[name] for name in BOTH if not name.startswith("0.self_attn.v")},
            "lacks the scale of the values of layer 0",
        ),
    ],
)
def test_bad_scales_of_the_checkpoint(
    checkpoint: Path, tensors: dict[str, Any], message: str
) -> None:
    add_tensors(checkpoint, tensors)
    assert message in refusal(checkpoint)
    check(checkpoint, kv_cache_dtype="auto")  # nothing reads them


def test_no_torch_is_imported(checkpoint: Path, tmp_path: Path) -> None:
    path = write_scales_file(tmp_path / "scales.json", scales_content([0.5, 1]))
    program = (
        "import sys\n"
        "from taco_proto.config import ModelConfig, WorkerConfig\n"
        "from taco_worker.startup_checks import check_kv_scales, check_model\n"
        f"wanted = ModelConfig(model={str(checkpoint)!r})\n"
        f"for path in ({str(path)!r}, None):\n"
        "    config = WorkerConfig(\n"
        "        model=wanted, kv_cache_dtype='fp8', quantization_param_path=path\n"
        "    )\n"
        "    check_kv_scales(config, check_model(wanted))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def add_settings(checkpoint: Path, settings: dict[str, Any]) -> None:
    file = checkpoint / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {},
        "ignore": [],
        **settings,
    }
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("strategy", ["attn_head", "channel"])
def test_static_scales_of_heads_are_refused_where_they_would_serve(
    checkpoint: Path, tmp_path: Path, strategy: str
) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": False}
    add_settings(checkpoint, {"kv_cache_scheme": scheme})
    for kv_cache_dtype in ("auto", "fp8", "fp8_e5m2"):
        error = refusal(checkpoint, kv_cache_dtype=kv_cache_dtype)
        assert f"static scales of the strategy {strategy!r}, which is not supported" in error
    for kv_cache_dtype in ("int8", "bfloat16"):
        check(checkpoint, kv_cache_dtype=kv_cache_dtype)
    path = write_scales_file(tmp_path / "scales.json", scales_content([0.5, 1]))
    check(checkpoint, path=path)


def test_a_strategy_must_be_a_name(checkpoint: Path) -> None:
    add_settings(checkpoint, {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": 3}})
    with pytest.raises(ConfigurationError, match="strategy must be a name, not 3"):
        check(checkpoint)


@pytest.mark.parametrize("load_format", ["pt", "tensorizer"])
def test_scales_of_other_files_are_checked_too(checkpoint: Path, load_format: str) -> None:
    add_tensors(checkpoint, {"1.self_attn.kv_scale": 1.0})  # and none of layer 0
    source = checkpoint / "model.safetensors"
    if load_format == "pt":
        torch.save(load_file(source), checkpoint / "pytorch_model.bin")
    else:
        tensorizer.write(checkpoint / "model.tensors", load_file(source))
    source.unlink()
    assert "lacks the scales of layer 0" in refusal(checkpoint, load_format=load_format)


@pytest.mark.parametrize("load_format", ["safetensors", "pt", "tensorizer"])
def test_scales_of_heads_name_tensor_and_file(checkpoint: Path, load_format: str) -> None:
    add_tensors(checkpoint, {**BOTH, "1.self_attn.attn.k_scale": [0.5, 0.25]})
    source = checkpoint / "model.safetensors"
    files = {"pt": "pytorch_model.bin", "tensorizer": "model.tensors"}
    file = checkpoint / files.get(load_format, source.name)
    if load_format == "pt":
        torch.save(load_file(source), file)
    elif load_format == "tensorizer":
        tensorizer.write(file, load_file(source))
    error = refusal(checkpoint, load_format=load_format)
    name = "model.layers.1.self_attn.attn.k_scale"
    assert error.startswith(f"{file}: {name} must be one number, not [2]: scales of heads are not")
    assert "--kv-cache-dtype int8 or bfloat16" in error


@pytest.mark.parametrize(
    ("settings", "kv_cache_dtype", "reads"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "auto", True),
        ({"kv_cache_quant_algo": "FP8"}, "auto", True),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "bfloat16", False),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "auto", False),
        ({"kv_cache_quant_algo": "NVFP4"}, "auto", False),
        (
            {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": True}},
            "auto",
            False,
        ),
    ],
)
def test_auto_is_what_the_checkpoint_was_made_for(
    checkpoint: Path, settings: dict[str, Any], kv_cache_dtype: str, reads: bool
) -> None:
    add_settings(checkpoint, settings)
    add_tensors(checkpoint, {"1.self_attn.kv_scale": 1.0})  # and none of layer 0
    if reads:
        assert "lacks the scales of layer 0" in refusal(checkpoint, kv_cache_dtype=kv_cache_dtype)
    else:
        check(checkpoint, kv_cache_dtype=kv_cache_dtype)
