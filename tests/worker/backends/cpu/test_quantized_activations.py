"""Which matrices of codes multiply int8 activations, and that a model with them computes the same
bits in any chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.cpu_kernels import NATIVE, WITH_TILES, kernels_of
from support.group_codes import random_codes
from support.paged import PagedRunner
from taco_kernels.code_layout import CodeLayout
from taco_kernels.cpu.coded_part import layout_of
from taco_kernels.kv_format import KVFormat
from taco_worker.backends.cpu.cpu_model import CpuModel
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.models.code_segments import CodeSegment
from taco_worker.models.config import load_hf_config
from taco_worker.models.int8_activations import check_int8_activations
from taco_worker.models.plan.model_plan import ModelPlan

TOKENS = torch.randint(384, (45,), generator=torch.Generator().manual_seed(0)).tolist()


def plan_of(tmp_path: Path, architecture: str, **changes: object) -> ModelPlan:
    sizes: dict[str, object] = {"hidden_size": 128, "intermediate_size": 256, **changes}
    return load_hf_config(make_checkpoint(tmp_path, architecture=architecture, **sizes)).plan  # type: ignore[arg-type]


def loaded(
    plan: ModelPlan, isa: str, activations: str, group: int = 64
) -> tuple[CpuWeights, CpuModel]:
    """Weights of random codes, and the model."""
    kernels = kernels_of(isa, 2)
    matrices = {
        name: parameter
        for name, parameter in plan.parameters.items()
        if len(parameter.shape) > 1 and "router" not in name
    }
    codes = {}
    for name, parameter in matrices.items():
        *_, n, k = parameter.shape
        own = random_codes(n, k, "int4", group, offset="zeros")
        codes[name] = replace(own, scales=own.scales * (0.05 / own.values().std()))
    weights = CpuWeights(
        plan,
        kernels,
        dtype=torch.bfloat16,
        quantization=None,
        codes={name: [CodeSegment(0, one.shape[0], layout_of(one))] for name, one in codes.items()},
        activations=activations,
    )
    for name, parameter in plan.parameters.items():
        if name not in matrices:
            weights.put(name, 0, torch.ones(parameter.shape), None)
            continue
        for expert in [None] if parameter.num_experts is None else range(parameter.num_experts):
            if weights.takes_codes(name):
                weights.put_codes(name, 0, codes[name], expert)
            else:
                weights.put(name, 0, codes[name].values().bfloat16(), expert)
    return weights, CpuModel(plan, kernels, weights, kv_format=KVFormat(torch.bfloat16))


def logits(model: CpuModel, sizes: tuple[int, ...] = (45,)) -> Tensor:
    runner, ids, found = PagedRunner(model, seed=1), list(TOKENS), []
    for size in sizes:
        found.append(runner.step({"a": ids[:size]})["a"])
        ids = ids[size:]
    return torch.cat(found)


@pytest.mark.parametrize("isa", NATIVE)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
@pytest.mark.parametrize("group", [32, 64])
def test_int8_activations_change_logits_little_and_no_bit_by_chunks(
    isa: str, architecture: str, group: int, tmp_path: Path
) -> None:
    group = 64 if isa == "amx" else group
    plan = plan_of(tmp_path, architecture, tie_word_embeddings=False)
    exact = logits(loaded(plan, isa, "bfloat16", group)[1])
    weights, model = loaded(plan, isa, "auto", group)
    assert model.description.endswith(", bfloat16, int4 codes, int8 activations")

    found = logits(model)

    error = float((found - exact).abs().mean() / exact.std())
    assert 0 < error < 0.06
    kinds = {matrix.dtype for matrix in weights.matrices.values()}
    kinds_of_experts = {experts.dtype for experts in weights.experts.values()}
    assert torch.int8 in kinds
    assert kinds_of_experts <= {torch.int8}
    assert torch.equal(logits(model, (1, 20, 3, 21)), found)


def test_short_groups_multiply_bfloat16_on_tiles(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "LlamaForCausalLM", tie_word_embeddings=False)

    weights, model = loaded(plan, WITH_TILES, "auto", group=32)

    assert model.description.endswith(", bfloat16, int4 codes, bfloat16 activations")
    assert {matrix.dtype for matrix in weights.matrices.values()} == {torch.bfloat16}
    with pytest.raises(ValueError, match="do not multiply int8 activations"):
        loaded(plan, WITH_TILES, "int8", group=32)


def test_embeddings_are_read_from_a_tied_head_of_codes(tmp_path: Path) -> None:
    """They are the same numbers, whatever the head is multiplied with."""
    plan = plan_of(tmp_path, "LlamaForCausalLM", tie_word_embeddings=True)
    plain, exact = loaded(plan, NATIVE[-1], "bfloat16")

    weights, model = loaded(plan, NATIVE[-1], "auto")

    assert weights.matrices[plan.embedding_table].dtype == torch.int8
    assert torch.equal(weights.embed(torch.arange(384)), plain.embed(torch.arange(384)))
    found, wanted = logits(model), logits(exact)
    assert 0 < float((found - wanted).abs().mean() / wanted.std()) < 0.06


def test_a_tied_head_whose_columns_have_an_order_multiplies_bfloat16(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "LlamaForCausalLM", tie_word_embeddings=True)
    n, k = plan.parameters[plan.embedding_table].shape
    layout = CodeLayout("int4", 64, has_column_groups=True)

    weights = CpuWeights(
        plan,
        kernels_of(NATIVE[-1], 1),
        dtype=torch.bfloat16,
        quantization=None,
        codes={plan.embedding_table: [CodeSegment(0, n, layout)]},
    )

    assert weights.int8_activations == frozenset()
    weights.create_matrix(plan.embedding_table)
    assert weights.matrices[plan.embedding_table].shape == (n, k)
    assert weights.matrices[plan.embedding_table].dtype == torch.bfloat16


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
@pytest.mark.parametrize(("group", "fits"), [(64, True), (32, True), (40, False)])
def test_headers_tell_what_multiplies_int8(
    architecture: str, group: int, fits: bool, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, architecture, tie_word_embeddings=False)
    codes = {
        name: [CodeSegment(0, parameter.shape[-2], CodeLayout("int4", group, has_zeros=True))]
        for name, parameter in plan.parameters.items()
        if len(parameter.shape) > 1
    }
    if fits:
        check_int8_activations(plan, codes)
        return
    with pytest.raises(ValueError, match="do not multiply int8 activations"):
        check_int8_activations(plan, codes)
