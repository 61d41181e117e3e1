"""Whole checkpoints of GPTQ, AWQ, Marlin, QQQ and auto-round against Hugging Face.

The oracle computes the dequantized weights in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.mixed_batches import assert_follows, in_chunks, three_sequences
from support.models import load_step_model
from support.packing.checkpoints import PACKED_MODULES, Packed, quantized_copy, rounded
from support.packing.integers import (
    pack_awq_gemm,
    pack_awq_gemv,
    pack_awq_gemv_fast,
    pack_gptq,
)
from support.packing.marlin import (
    pack_marlin,
    pack_qqq_rows,
    pack_sparse_marlin,
    prune,
)
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.weight_checks import check_weight_files

NUM_BLOCKS = 40
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}


def _gptq(bits: int = 4, group: int = 32, **own: Any) -> Callable[[str, Tensor], Packed]:
    def pack(module: str, weight: Tensor) -> Packed:
        columns = weight.shape[1]
        integers = rounded(
            weight,
            bits,
            columns if group == -1 else group,
            seed=len(module) + ord(module[-6]),
            **own,
        )
        return pack_gptq(integers), integers.values

    return pack


def _gptq_with_biases(module: str, weight: Tensor) -> Packed:
    """Some writers add a bias of zeros to modules that have none."""
    stored, values = _gptq()(module, weight)
    return {**stored, ".bias": torch.zeros(len(weight), dtype=torch.float16)}, values


def _gptq_v2(module: str, weight: Tensor) -> Packed:
    integers = rounded(weight, 3, 64, symmetric=False)
    return pack_gptq(integers, v2=True), integers.values


def _by_dynamic(module: str, weight: Tensor) -> Packed | None:
    """Unlike bits in one fused matrix, and one module without quantization."""
    if module.endswith("k_proj"):
        return _gptq(8, -1)(module, weight)
    if module.endswith("v_proj"):
        return _gptq(2, 16, symmetric=False)(module, weight)
    return None if module == "model.layers.0.mlp.up_proj" else _gptq()(module, weight)


DYNAMIC = {
    r"+:.*\.k_proj": {"bits": 8, "group_size": -1},
    r"+:.*\.v_proj": {"bits": 2, "group_size": 16, "sym": False},
    r"-:model\.layers\.0\.mlp\.up": {},
}


def _marlin(module: str, weight: Tensor) -> Packed:
    integers = rounded(weight, 4, 32)
    return pack_marlin(integers), integers.values


def _sparse_marlin(module: str, weight: Tensor) -> Packed:
    integers = rounded(weight, 8, 32)
    kept = prune(integers)
    return pack_sparse_marlin(integers, kept), integers.values


def _qqq(module: str, weight: Tensor) -> Packed:
    scales = weight.abs().amax(1, keepdim=True).float() / 7
    codes = (weight / scales).round().long().numpy()
    stored = pack_qqq_rows(codes, scales)
    return stored, torch.from_numpy(codes).float() * scales


def _awq(version: str) -> Callable[[str, Tensor], Packed]:
    def pack(module: str, weight: Tensor) -> Packed:
        integers = rounded(weight, 4, 32, symmetric=False)
        if version == "gemm":
            return pack_awq_gemm(integers), integers.values
        if version == "gemv":
            return pack_awq_gemv(integers, 32), integers.values
        stored = pack_awq_gemv_fast(integers, 32)
        groups = torch.from_numpy(integers.group_of_column)
        products = torch.from_numpy(integers.codes).float() * integers.scales.float()[:, groups]
        return stored, products + stored[".scaled_zeros"].T.float()[:, groups]

    return pack


@dataclass(frozen=True)
class Case:
    """Args: head: the language model head is quantized too."""

    pack: Callable[[str, Tensor], Packed | None]
    config: dict[str, Any]
    variant: str = "llama-2-like"
    sizes: dict[str, Any] = field(default_factory=lambda: dict(SIZES))
    head: bool = False


MOE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
CASES = {
    "gptq": Case(_gptq_with_biases, GPTQ),
    "gptq-rows-8-bit": Case(_gptq(8, -1), {**GPTQ, "bits": 8, "group_size": -1}),
    "gptq-short-group": Case(_gptq(4, 128), {**GPTQ, "group_size": 128}),
    "gptq-v2-3-bit": Case(
        _gptq_v2, {**GPTQ, "bits": 3, "group_size": 64, "sym": False, "format": "gptq_v2"}
    ),
    # Every projection gets another order of columns.
    "gptq-desc-act": Case(
        _gptq(ordered_columns=True, symmetric=False), {**GPTQ, "desc_act": True, "sym": False}
    ),
    "gptq-dynamic": Case(_by_dynamic, {**GPTQ, "dynamic": DYNAMIC}),
    "gptq-qwen2": Case(_gptq(), GPTQ, "qwen2-like"),
    "gptq-head": Case(_gptq(), {**GPTQ, "lm_head": True}, head=True),
    "gptq-conv1d": Case(_gptq(), GPTQ, "gpt2-like", {"n_embd": 64, "n_head": 4}),
    "gptq-mixtral": Case(_gptq(), GPTQ, "mixtral-8x7b-like", MOE),
    "gptq-qwen2-moe": Case(
        _gptq(4, 16),
        {**GPTQ, "group_size": 16},
        "qwen1.5-moe-like",
        {**MOE, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    ),
    "marlin": Case(_marlin, {**GPTQ, "checkpoint_format": "marlin"}),
    "marlin-24": Case(_sparse_marlin, {**GPTQ, "bits": 8, "checkpoint_format": "marlin_24"}),
    "qqq": Case(_qqq, {"quant_method": "qqq", "wbits": 4, "group_size": -1}),
    "awq-gemm": Case(
        _awq("gemm"), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    ),
    "awq-gemv": Case(
        _awq("gemv"), {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMV"}
    ),
    "awq-gemv-fast": Case(
        _awq("fast"), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"}
    ),
    "auto-round": Case(
        _gptq(), {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
    ),
}


def _make(folder: Path, case: Case) -> tuple[Path, Path]:
    """The quantized checkpoint, and the dense one with its values."""
    variant = VARIANTS[case.variant]
    dense = variant.make(folder / "dense", **case.sizes)

    def pack(module: str, weight: Tensor) -> Packed | None:
        is_head = case.head and module == "lm_head"
        return case.pack(module, weight) if is_head or PACKED_MODULES.search(module) else None

    return quantized_copy(folder / "quantized", dense, pack, case.config), dense


@pytest.fixture(scope="module", params=list(CASES))
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, str]:
    case = CASES[request.param]
    return *_make(tmp_path_factory.mktemp(request.param), case), case.variant


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_logits_and_greedy_tokens(checkpoint: tuple[Path, Path, str], serves: str) -> None:
    path, dense, variant = checkpoint
    check_weight_files(load_hf_config(path))
    oracle = VARIANTS[variant].reference(dense)
    model = load_step_model(path, serves)
    sequences = three_sequences()
    actual = in_chunks(PagedRunner(model, num_blocks=NUM_BLOCKS), sequences)
    assert_follows(actual, oracle, sequences)

    (prompt,) = token_sequences((20,), seed=1)
    runner = PagedRunner(model, num_blocks=NUM_BLOCKS)
    tokens, chunk = [], prompt
    for _ in range(8):
        chunk = [int(runner.step({"a": chunk})["a"][-1].argmax())]
        tokens += chunk
    assert tokens == oracle.greedy(prompt, 8)


@pytest.mark.parametrize("name", ["gptq", "gptq-mixtral"])
def test_pickled_state_dicts(tmp_path: Path, name: str) -> None:
    """Their headers do not tell which modules are unquantized: embeddings and routers are."""
    case = CASES[name]
    path, _ = _make(tmp_path, case)
    (prompt,) = token_sequences((20,), seed=1)

    def logits() -> Tensor:
        runner = PagedRunner(load_step_model(path, "kernels"), num_blocks=NUM_BLOCKS)
        return runner.step({"a": prompt})["a"]

    expected = logits()
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    assert torch.equal(logits(), expected)
