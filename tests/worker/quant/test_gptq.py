"""GPTQ matrices against an independent packer, and its configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.packing.checks import assert_exact, fits
from support.packing.integers import Integers, pack_gptq, random_integers
from taco_worker.quant.formats.gptq import GptqMatrix, read
from taco_worker.quant.formats.marlin import MarlinMatrix, SparseMarlinMatrix
from taco_worker.quant.weight_format import WeightFormat

CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


def _format(n: int, k: int, module: str = "model.layers.0.mlp.up_proj", **own: Any) -> GptqMatrix:
    matrix = read({**CONFIG, **own}, Path()).format_of(module, n, k)
    assert isinstance(matrix, GptqMatrix)
    return matrix


@settings(deadline=None, max_examples=60)
@given(
    n=st.sampled_from([32, 96]),
    k=st.sampled_from([32, 96, 224]),
    bits=st.sampled_from([2, 3, 4, 8]),
    group=st.sampled_from([-1, 16, 32, 64, 128, 1024]),
    symmetric=st.booleans(),
    ordered=st.booleans(),
    v2=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    seed=st.integers(0, 9),
)
def test_a_matrix_is_read_to_the_bit(
    n: int,
    k: int,
    bits: int,
    group: int,
    symmetric: bool,
    ordered: bool,
    v2: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    integers = random_integers(
        n,
        k,
        bits,
        k if group == -1 else group,
        seed=seed,
        symmetric=symmetric,
        ordered_columns=ordered,
        dtype=dtype,
    )
    matrix = _format(
        n,
        k,
        bits=bits,
        group_size=group,
        sym=symmetric,
        desc_act=ordered,
        checkpoint_format="gptq_v2" if v2 else "gptq",
    )
    assert_exact(matrix, pack_gptq(integers, v2=v2), integers.values)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("checkpoint_format", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("v2", [False, True])
def test_the_values_of_symmetric_zero_points_decide(
    bits: int, checkpoint_format: str, v2: bool
) -> None:
    integers = random_integers(32, 64, bits, 32, symmetric=True)
    matrix = _format(32, 64, bits=bits, checkpoint_format=checkpoint_format)
    assert_exact(matrix, pack_gptq(integers, v2=v2), integers.values)


def test_zero_points_of_zero_wrap_around() -> None:
    """Writers of "gptq" files subtract 1 from 0 in as many bits as a code has."""
    integers = random_integers(32, 64, 4, 32)
    integers.zeros[:] = 0
    assert_exact(_format(32, 64, sym=False), pack_gptq(integers), integers.values)


def test_the_tensor_of_groups_is_optional() -> None:
    integers = random_integers(32, 96, 4, 64, symmetric=True)
    stored = pack_gptq(integers)
    del stored[".g_idx"]
    assert_exact(_format(32, 96, group_size=64), stored, integers.values)


def test_activation_order_needs_the_tensor_of_groups() -> None:
    """Without it a column's group would be a guess; one group needs none."""
    assert not _format(32, 96, group_size=64, desc_act=True).tensors[".g_idx"].is_optional
    assert _format(32, 96, group_size=-1, desc_act=True).tensors[".g_idx"].is_optional


def test_eight_bits_without_sym_keep_their_zero_points() -> None:
    integers = random_integers(32, 64, 8, 32)
    matrix = read({"bits": 8, "group_size": 32}, Path()).format_of("model.layers.0.q", 32, 64)
    assert matrix is not None
    assert_exact(matrix, pack_gptq(integers), integers.values)


def _edited(name: str, edit: Any, **own: Any) -> tuple[WeightFormat, dict[str, Tensor]]:
    integers = random_integers(32, 64, own.get("bits", 4), 32, symmetric=own.get("sym", True))
    stored = pack_gptq(integers)
    edit(stored[name])
    return _format(32, 64, **own), stored


@pytest.mark.parametrize(
    ("name", "value", "own", "message"),
    [
        (".scales", float("nan"), {}, "scales are not finite"),
        (".scales", float("inf"), {"bits": 8}, "scales are not finite"),
        (".g_idx", -1, {"desc_act": True}, "g_idx has group -1; the groups are 0 to 1"),
        (".g_idx", 2, {"desc_act": True}, "g_idx has group 2; the groups are 0 to 1"),
        (".g_idx", 2**31 - 1, {}, "g_idx has group 2147483647; the groups are 0 to 1"),
        (".g_idx", 1, {}, "g_idx reorders columns; set desc_act to true"),
        (".qzeros", 5, {"bits": 8}, "zero points are not symmetric; set sym to false"),
    ],
)
def test_invalid_values(name: str, value: float, own: dict[str, Any], message: str) -> None:
    def edit(tensor: Tensor) -> None:
        tensor.view(-1)[3] = value

    matrix, stored = _edited(name, edit, **own)
    with pytest.raises(ValueError, match=message):
        matrix.dequantize(stored)
    with pytest.raises(ValueError, match=message):
        matrix.codes(stored)


def test_a_matrix_must_fill_whole_words() -> None:
    with pytest.raises(ValueError, match="3-bit GPTQ cannot store 48 in features"):
        _format(32, 48, bits=3)
    with pytest.raises(ValueError, match="4-bit GPTQ cannot store 12 out features"):
        _format(12, 64)
    assert fits(_format(8, 40), pack_gptq(random_integers(8, 40, 4, 32, symmetric=True)))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"bits": 5}, "bits is 5; it must be 2 or 3 or 4 or 8"),
        ({"bits": "4"}, "bits is '4'; it must be"),
        ({"bits": True}, "bits is True; it must be"),
        ({"bits": None}, "quantization_config has no bits"),
        ({"group_size": 0}, "group_size is 0; it must be -1 or a positive integer"),
        ({"group_size": "128"}, "group_size is '128'"),
        ({"group_size": 2.5}, "group_size is 2.5"),
        ({"sym": "yes"}, "sym is 'yes'; it must be true or false"),
        ({"desc_act": 1}, "desc_act is 1; it must be true or false"),
        ({"lm_head": 1}, "lm_head is 1; it must be true or false"),
        ({"checkpoint_format": "bitblas"}, "checkpoint_format is 'bitblas'; it must be gptq or"),
        ({"checkpoint_format": 3}, "checkpoint_format is 3; it must be a text"),
        ({"pack_dtype": "int64"}, "packed in int64 are not supported"),
        ({"dynamic": ["-:.*"]}, r"dynamic is \['-:.\*'\]; it must be an object"),
        ({"dynamic": {"+:x": 8}}, r"dynamic\['\+:x'\] is 8; it must be an object"),
        ({"dynamic": {"+:(": {}}}, r"dynamic has '\(', not a regular expression"),
        ({"dynamic": {"+:x": {"bits": 7}}}, r"dynamic\['\+:x'\].bits is 7"),
        ({"modules_in_block_to_quantize": [3]}, "modules_in_block_to_quantize is"),
        ({"is_marlin_format": True, "sym": False}, "Marlin checkpoints are symmetric"),
        ({"checkpoint_format": "marlin", "bits": 8}, "bits is 8; it must be 4"),
    ],
)
def test_invalid_configurations(own: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read({**CONFIG, **own}, Path())
    assert "\n" not in str(error.value)


def test_rules_choose_settings_by_module() -> None:
    quantization = read(
        {
            **CONFIG,
            "dynamic": {
                r"-:model\.layers\.0\.mlp\.down": {},
                r"+:model\.layers\.[01]\.mlp": {"bits": 8, "group_size": -1},
                r".*\.k_proj": {"bits": 2, "sym": False, "desc_act": True},
            },
        },
        Path(),
    )

    def bits(module: str) -> tuple[int, int | None] | None:
        matrix = quantization.format_of(module, 64, 64)
        assert matrix is None or isinstance(matrix, GptqMatrix)
        return None if matrix is None else (matrix.bits, matrix.group_size)

    assert bits("model.layers.0.mlp.down_proj") is None
    assert bits("model.layers.1.mlp.down_proj") == (8, None)
    assert bits("model.layers.0.mlp.up_proj") == (8, None)
    assert bits("model.layers.2.mlp.up_proj") == (4, 32)
    assert bits("model.layers.0.self_attn.k_proj") == (2, 32)
    assert bits("lm_head") is None
    k_proj = quantization.format_of("model.layers.0.self_attn.k_proj", 64, 64)
    assert k_proj is not None
    assert k_proj.layout is not None
    assert k_proj.layout.has_column_groups


def test_the_language_model_head_is_quantized_if_the_configuration_says_so() -> None:
    assert read(CONFIG, Path()).format_of("lm_head", 64, 64) is None
    assert read({**CONFIG, "lm_head": True}, Path()).format_of("lm_head", 64, 64) is not None


def test_only_the_named_modules_of_a_block_are_quantized() -> None:
    only = [["self_attn.q_proj", "self_attn.k_proj"], ["mlp.up_proj"]]
    quantization = read({**CONFIG, "modules_in_block_to_quantize": only}, Path())
    assert quantization.format_of("model.layers.0.self_attn.q_proj", 64, 64) is not None
    assert quantization.format_of("model.layers.0.mlp.down_proj", 64, 64) is None
    assert quantization.format_of("model.layers.0.mlp.up_proj_extra", 64, 64) is None


@pytest.mark.parametrize(
    ("own", "kind", "method"),
    [
        ({"checkpoint_format": "gptq"}, GptqMatrix, "gptq"),
        ({"format": "gptq_v2"}, GptqMatrix, "gptq"),
        ({"checkpoint_format": "marlin"}, MarlinMatrix, "marlin"),
        ({"is_marlin_format": True}, MarlinMatrix, "marlin"),
        ({"checkpoint_format": "marlin_24"}, SparseMarlinMatrix, "gptq_marlin_24"),
    ],
)
def test_the_checkpoint_format_chooses_the_reader(
    own: dict[str, Any], kind: type, method: str
) -> None:
    quantization = read({**CONFIG, **own}, Path())
    assert quantization.method == method
    assert isinstance(quantization.format_of("model.layers.0.q", 64, 64), kind)


def test_the_packer_knows_no_reader() -> None:
    """A known word: codes 0 to 7 of 4 bits, and zero points 8 as files store them."""
    integers = random_integers(8, 8, 4, 8, symmetric=True)
    integers.codes[:] = range(8)
    stored = pack_gptq(Integers(4, integers.codes, *_rest(integers)))
    assert stored[".qweight"].flatten().tolist() == [0x76543210] * 8
    assert stored[".qzeros"].flatten().tolist() == [0x77777777]


def _rest(integers: Integers) -> tuple[Any, Any, Any]:
    return integers.zeros, integers.scales, integers.group_of_column
