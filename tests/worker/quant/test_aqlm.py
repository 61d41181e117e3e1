"""AQLM: the reference formula of the aqlm package, and one line for settings that do not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from support.packing.aqlm import pack, reference
from taco_worker.quant.formats.aqlm import Aqlm, AqlmMatrix, Scheme, read

MODULE = "model.layers.0.mlp.up_proj"
CONFIG = {"in_group_size": 8, "out_group_size": 1, "num_codebooks": 1, "nbits_per_codebook": 16}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "scheme",
    [
        Scheme(1, 8, 1, 16),
        Scheme(1, 8, 2, 8),
        Scheme(1, 16, 8, 8),
        Scheme(4, 8, 1, 12),
        Scheme(2, 4, 3, 6),
    ],
)
def test_numbers_are_those_of_the_formula(scheme: Scheme, dtype: torch.dtype) -> None:
    tensors = pack(32, 64, scheme, dtype)
    format_ = AqlmMatrix(32, 64, scheme)
    assert {suffix: part.shape for suffix, part in tensors.items()} == {
        suffix: stored.shape for suffix, stored in format_.tensors.items()
    }
    assert torch.equal(format_.dequantize(tensors), reference(tensors, scheme.bits))
    assert format_.layout is None


def _checkpoint(folder: Path) -> Aqlm:
    tensors = pack(32, 64, Scheme(1, 8, 2, 8))
    save_file(
        {MODULE + suffix: part for suffix, part in tensors.items()}, folder / "model.safetensors"
    )
    return read(CONFIG | {"num_codebooks": 2, "nbits_per_codebook": 8}, folder)


def test_matrices_without_codes_are_not_quantized(tmp_path: Path) -> None:
    quantization = _checkpoint(tmp_path)
    assert quantization.format_of("lm_head", 32, 64) is None
    assert quantization.format_of(MODULE, 32, 64) == AqlmMatrix(32, 64, Scheme(1, 8, 2, 8))


def test_config_decides_where_weight_files_are_not_at_hand(tmp_path: Path) -> None:
    skipped = {"linear_weights_not_to_quantize": ["model.embed_tokens.weight"]}
    quantization = read(CONFIG | skipped, tmp_path)
    assert quantization.format_of("model.embed_tokens", 32, 64) is None
    assert quantization.format_of("lm_head", 32, 64) is None
    assert quantization.format_of(MODULE, 32, 64) is not None


def test_a_matrix_that_groups_do_not_divide_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[32, 60\], which AQLM's groups of \[1, 8\] do not"):
        _checkpoint(tmp_path).format_of(MODULE, 32, 60)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nbits_per_codebook": 17}, "nbits_per_codebook of AQLM must be 1 to 16, not 17"),
        ({"num_codebooks": True}, "num_codebooks of AQLM must be 1 to 64, not True"),
        ({"in_group_size": None}, "in_group_size of AQLM must be 1 to 64, not None"),
        ({"linear_weights_not_to_quantize": "x"}, "must be a list of names, not 'x'"),
    ],
)
def test_invalid_settings_are_one_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(CONFIG | changes, tmp_path)


def test_pickled_weights_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"has only \.bin files"):
        read(CONFIG, tmp_path)


@pytest.mark.parametrize("name", [".codebooks", ".scales"])
def test_numbers_that_are_not_finite_are_an_error(name: str) -> None:
    scheme = Scheme(1, 8, 2, 8)
    tensors = pack(32, 64, scheme)
    tensors[name][0] = float("nan")
    with pytest.raises(ValueError, match=f"{name[1:]} have values that are not finite"):
        AqlmMatrix(32, 64, scheme).dequantize(tensors)
