"""auto-round checkpoints: which format and settings a module gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.packing.checks import assert_exact
from support.packing.integers import pack_awq_gemm, pack_gptq, random_integers
from taco_worker.quant.formats.auto_round import read
from taco_worker.quant.formats.gptq import GptqMatrix

CONFIG = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
MODULE = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("own", "v2"),
    [
        ({}, False),
        ({"packing_format": "auto_round:auto_gptq"}, False),
        ({"packing_format": "auto_round:gptq"}, False),
        ({"packing_format": "auto_round:gptqmodel"}, True),
        ({"packing_format": "auto-round:gptqmodel"}, True),
        ({"backend": "autoround:exllamav2"}, True),
    ],
)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_matrices_of_gptq(own: dict[str, Any], v2: bool, bits: int) -> None:
    integers = random_integers(32, 64, bits, 32)
    quantization = read({**CONFIG, "bits": bits, "sym": False, **own}, Path())
    matrix = quantization.format_of(MODULE, 32, 64)
    assert matrix is not None
    assert_exact(matrix, pack_gptq(integers, v2=v2), integers.values)


@pytest.mark.parametrize("symmetric", [False, True])
def test_matrices_of_awq(symmetric: bool) -> None:
    integers = random_integers(32, 64, 4, 32, symmetric=symmetric)
    config = {**CONFIG, "packing_format": "auto_round:auto_awq", "sym": symmetric}
    matrix = read(config, Path()).format_of(MODULE, 32, 64)
    assert matrix is not None
    assert_exact(matrix, pack_awq_gemm(integers), integers.values)


def _bits(config: dict[str, Any], module: str) -> int | None:
    matrix = read({**CONFIG, **config}, Path()).format_of(module, 64, 64)
    assert matrix is None or isinstance(matrix, GptqMatrix)
    return None if matrix is None else matrix.bits


def test_modules_have_settings_of_their_own() -> None:
    extra = {
        "model.layers.0.mlp.gate": {"bits": 16, "data_type": "float"},
        "model.layers.1.mlp.up_proj": {"bits": 8},
        r".*self_attn\.[qk]_proj": {"bits": 2, "group_size": -1},
        "lm_head": {"bits": 8, "group_size": 64, "sym": False},
    }
    config = {"extra_config": extra}
    assert _bits(config, MODULE) == 4
    assert _bits(config, "model.layers.0.mlp.gate") is None
    assert _bits(config, "model.layers.0.mlp.gate_proj") == 4
    assert _bits(config, "model.layers.1.mlp.up_proj") == 8
    assert _bits(config, "model.layers.7.self_attn.k_proj") == 2
    assert _bits(config, "model.layers.7.self_attn.v_proj") == 4
    assert _bits(config, "lm_head") == 8
    assert _bits({}, "lm_head") is None


@pytest.mark.parametrize(
    "blocks", ["model.layers,model.mtp", ["model.layers"], [["model.layers.0", "model.layers.1"]]]
)
def test_only_named_blocks_are_quantized(blocks: Any) -> None:
    config = {"block_name_to_quantize": blocks, "extra_config": {"head.out": {"bits": 8}}}
    assert _bits(config, MODULE) == 4
    assert _bits(config, "model.layers_extra.0") is None
    assert _bits(config, "visual.blocks.0.mlp") is None
    assert _bits(config, "head.out") == 8


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "model.", ""])
def test_names_may_be_those_of_a_model_for_images(prefix: str) -> None:
    extra = {f"{prefix}layers.1.mlp.up_proj": {"bits": 8}}
    config = {"block_name_to_quantize": f"{prefix}layers", "extra_config": extra}
    assert _bits(config, MODULE) == 4
    assert _bits(config, "model.layers.1.mlp.up_proj") == 8
    assert _bits(config, "visual.blocks.0.mlp") is None
    expressions = {"^" + re.escape(f"{prefix}layers.0.") + ".*": {"bits": 2}}
    assert _bits({"extra_config": expressions}, MODULE) == 2


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"bits": 5}, "bits is 5; it must be 2 or 3 or 4 or 8"),
        ({"bits": "4"}, "bits is '4'; it must be an integer"),
        ({"group_size": 0}, "group_size is 0; it must be -1 or a positive integer"),
        ({"group_size": None}, "quantization_config has no group_size"),
        ({"sym": "true"}, "sym is 'true'; it must be true or false"),
        (
            {"packing_format": "auto_round:llm_compressor"},
            "'auto_round:llm_compressor' of auto-round",
        ),
        ({"packing_format": "auto_round:fp8"}, "'auto_round:fp8' of auto-round is not supported"),
        ({"packing_format": 4}, "packing_format is 4; it must be a text"),
        ({"packing_format": "auto_round:auto_awq", "bits": 8}, "bits is 8; it must be 4"),
        ({"data_type": "mx_fp"}, "data_type 'mx_fp' of auto-round is not supported"),
        ({"act_bits": 8}, "auto-round checkpoints with quantized activations are not supported"),
        (
            {"extra_config": {MODULE: {"bits": 7}}},
            r"extra_config\['model.layers.0.mlp.up_proj'\].bits is 7",
        ),
        ({"extra_config": {MODULE: 8}}, "is 8; it must be an object"),
        ({"extra_config": {"*": {}}}, "not a regular expression"),
    ],
)
def test_invalid_configurations(own: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read({**CONFIG, **own}, Path())
    assert "\n" not in str(error.value)
