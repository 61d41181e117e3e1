"""Settings of quantized checkpoints with any value in any place: one line, or they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taco_worker.quant.formats import auto_round, awq, fbgemm_fp8, fp8, gptq, modelopt, mxfp4, qqq
from taco_worker.quant.formats.compressed_tensors import config as compressed_tensors

VALUES: tuple[Any, ...] = (None, True, -1, 0, 2.5, 10**30, "", "re:(", "x" * 20, [], [1], [[]], {})
WEIGHTS = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 32,
    "block_structure": None,
    "dynamic": False,
    "actorder": None,
    "scale_dtype": None,
}
SETTINGS: dict[str, tuple[Callable[[Any, Path], Any], dict[str, Any]]] = {
    "compressed-tensors": (
        compressed_tensors.read,
        {
            "config_groups": {
                "group_0": {
                    "targets": ["Linear", "re:.*mlp"],
                    "weights": WEIGHTS,
                    "input_activations": None,
                    "format": None,
                }
            },
            "format": "pack-quantized",
            "ignore": ["lm_head"],
            "quantization_status": "compressed",
            "sparsity_config": {"format": "dense"},
            "transform_config": {},
        },
    ),
    "compressed-tensors blocks": (
        compressed_tensors.read,
        {
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {
                        **WEIGHTS,
                        "num_bits": 8,
                        "type": "float",
                        "strategy": "block",
                        "block_structure": [128, 128],
                    },
                    "input_activations": {},
                }
            },
            "format": "mixed-precision",
        },
    ),
    "gptq": (
        gptq.read,
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 32,
            "desc_act": True,
            "sym": False,
            "lm_head": True,
            "checkpoint_format": "gptq_v2",
            "format": "gptq",
            "is_marlin_format": False,
            "pack_dtype": "int32",
            "dynamic": {"+:.*down": {"bits": 8, "group_size": -1}, "-:.*up": {}},
            "modules_in_block_to_quantize": [["mlp", "lm_head"]],
        },
    ),
    "marlin": (
        gptq.read,
        {"quant_method": "marlin", "bits": 4, "group_size": 32, "sym": True, "lm_head": True},
    ),
    "qqq": (
        qqq.read,
        {"wbits": 4, "bits": 4, "group_size": 32, "groupsize": 32, "is_sym": True},
    ),
    "awq": (
        awq.read,
        {
            "bits": 4,
            "w_bit": 4,
            "group_size": 32,
            "version": "gemm",
            "zero_point": True,
            "backend": "autoawq",
            "modules_to_not_convert": ["lm_head"],
        },
    ),
    "auto-round": (
        auto_round.read,
        {
            "bits": 4,
            "group_size": 32,
            "sym": True,
            "data_type": "int",
            "act_bits": 16,
            "packing_format": "auto_round:auto_gptq",
            "block_name_to_quantize": ["model.layers"],
            "extra_config": {"lm_head": {"bits": 8}, ".*mlp.*": {"group_size": 16, "sym": False}},
        },
    ),
    "fp8": (
        fp8.read,
        {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "scale_fmt": "float",
            "expert_dtype": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head"],
            "ignored_layers": ["lm_head"],
        },
    ),
    "fbgemm_fp8": (fbgemm_fp8.read, {"modules_to_not_convert": ["lm_head"]}),
    "mxfp4": (mxfp4.read, {"modules_to_not_convert": ["lm_head"]}),
    "modelopt": (
        modelopt.read,
        {
            "quantization": {
                "quant_algo": "MIXED_PRECISION",
                "exclude_modules": ["lm_head"],
                "group_size": 16,
                "quantized_layers": {"model.layers.0": {"quant_algo": "FP8"}},
            }
        },
    ),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, (*path, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from places(one, (*path, index))


@pytest.mark.parametrize("name", SETTINGS)
def test_any_value_in_any_place(name: str, tmp_path: Path) -> None:
    read, settings = SETTINGS[name]
    messages = []
    for path in places(settings):
        for value in VALUES:
            changed = copy.deepcopy(settings)
            place: Any = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            try:
                quantization = read(changed, tmp_path)
                for module in ("lm_head", "model.layers.0.mlp.experts.down_proj"):
                    quantization.format_of(module, 64, 64)
            except ValueError as error:
                messages.append(str(error))
    assert messages
    assert not [message for message in messages if "\n" in message]
