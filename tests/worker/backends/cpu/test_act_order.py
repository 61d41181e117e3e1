"""Matrices whose columns are in any order of groups multiply int8 activations in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from support.group_codes import random_codes
from support.paged import PagedRunner
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.coded_part import layout_of
from taco_kernels.group_codes import GroupCodes
from taco_kernels.kv_format import KVFormat
from taco_worker.backends.cpu.cpu_model import CpuModel
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.models.code_segments import CodeSegment
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.models.registry import find_recipe

TOKENS = torch.randint(100, (45,), generator=torch.Generator().manual_seed(0)).tolist()
GROUP = 64
LLAMA: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 256,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FIELDS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,  # with biases
    "DeepseekV3ForCausalLM": {  # two products read one norm
        **LLAMA,
        "num_key_value_heads": 4,
        "q_lora_rank": 128,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 128,
    },
}


def plan_of(architecture: str) -> ModelPlan:
    fields = ConfigFields(FIELDS[architecture])
    return find_recipe([architecture])[1](fields, architecture)


def cut(name: str, n: int) -> list[int]:
    """Rows of the parts that a checkpoint stores apart."""
    if "qkv" in name:
        return [n // 2, n // 4, n - n // 2 - n // 4]
    return [n // 2, n // 2] if "gate_up" in name else [n]


class Filler:
    """Random weights. The groups of a row of codes are alike: any order has the same values.

    Args:
        orders: how the groups of columns are given: "none", "one" for all matrices of a width,
            "of each matrix", "of each part", "of one part", or "uneven".
    """

    def __init__(self, plan: ModelPlan, orders: str) -> None:
        self._plan = plan
        random = torch.Generator().manual_seed(0)
        self._rest: dict[str, Tensor] = {}
        self._codes: dict[str, list[GroupCodes]] = {}
        linears = {op.weight for op in (*plan.ops, *plan.logits) if isinstance(op, Linear)}
        for name, parameter in plan.parameters.items():
            shape = parameter.shape
            if name in linears and "router" not in name:
                self._codes[name] = [
                    self._part(count, shape[1], orders, index, len(self._codes))
                    for index, count in enumerate(cut(name, shape[0]))
                ]
            else:
                values = torch.randn(shape, generator=random) * 0.05
                self._rest[name] = values + (1 if "norm" in name else 0)

    @staticmethod
    def _part(n: int, k: int, orders: str, index: int, number: int) -> GroupCodes:
        codes = random_codes(n, k, "int4", GROUP, offset="zeros", seed=index)
        scales = torch.full_like(codes.scales, 0.01) * (1 + torch.arange(n)[:, None] % 3)
        zeros = torch.full_like(codes.zeros, 7)  # type: ignore[arg-type]
        codes = replace(codes, scales=scales, zeros=zeros)
        if orders == "none" or (orders == "of one part" and index != 1):
            return codes
        groups = torch.arange(k, dtype=torch.int32) // GROUP
        seed = {"of each part": index, "of each matrix": number}.get(orders, 0)
        groups = groups[torch.randperm(k, generator=torch.Generator().manual_seed(seed))]
        if orders == "uneven":
            groups[0] = groups[groups != groups[0]][0] if groups.unique().numel() > 1 else 0
        return replace(codes, group_of_column=groups)

    def segments(self) -> Mapping[str, Sequence[CodeSegment]]:
        return {
            name: [
                CodeSegment(
                    sum(part.shape[0] for part in parts[:i]), part.shape[0], layout_of(part)
                )
                for i, part in enumerate(parts)
            ]
            for name, parts in self._codes.items()
        }

    def weights(self, isa: str, activations: str = "auto") -> CpuWeights:
        weights = CpuWeights(
            self._plan,
            kernels_of(isa, 2),
            dtype=torch.bfloat16,
            quantization=None,
            codes=self.segments(),
            activations=activations,
        )
        for name, values in self._rest.items():  # biases come before the matrices
            if self._plan.parameters[name].num_experts is None:
                weights.put(name, 0, values, None)
            else:
                for expert, one in enumerate(values):
                    weights.put(name, 0, one, expert)
        for name, parts in self._codes.items():
            assert weights.takes_codes(name)
            start = 0
            for part in parts:
                weights.put_codes(name, start, part, None)
                start += part.shape[0]
        return weights

    def model(self, isa: str, activations: str = "auto") -> tuple[CpuWeights, CpuModel]:
        weights = self.weights(isa, activations)
        kv_format = KVFormat(torch.bfloat16)
        return weights, CpuModel(self._plan, kernels_of(isa, 2), weights, kv_format=kv_format)


def logits_of(model: CpuModel) -> Tensor:
    logits = PagedRunner(model).step({"a": TOKENS})["a"]
    assert torch.isfinite(logits).all()
    return logits


def distance(logits: Tensor, wanted: Tensor) -> float:
    return float((logits - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@pytest.mark.parametrize("orders", ["one", "of each matrix"])
@pytest.mark.parametrize("architecture", FIELDS)
def test_an_order_changes_nothing(architecture: str, orders: str, isa: str) -> None:
    plan = plan_of(architecture)
    _, plain = Filler(plan, "none").model(isa)
    weights, ordered = Filler(plan, orders).model(isa)

    wanted, logits = logits_of(plain), logits_of(ordered)

    assert distance(logits, wanted) < 0.01  # sums of groups are rounded in another order
    coded = [matrix for matrix in weights.matrices.values() if isinstance(matrix, CodedMatrix)]
    assert {matrix.dtype for matrix in coded} == {torch.int8}
    assert all(matrix.column_order for matrix in coded)


@pytest.mark.parametrize("orders", ["of each part", "of one part", "uneven"])
def test_matrices_without_one_order_take_bfloat16(orders: str) -> None:
    plan = plan_of("Qwen2ForCausalLM")
    _, wanted = Filler(plan, "none").model(NATIVE[-1], "bfloat16")
    filler = Filler(plan, orders)

    weights, model = filler.model(NATIVE[-1])

    qkv, down = (
        weights.matrices[f"layers.0.{name}.weight"] for name in ("attn.qkv_proj", "mlp.down_proj")
    )
    assert qkv.dtype == torch.bfloat16
    assert down.dtype == (torch.bfloat16 if orders == "uneven" else torch.int8)
    assert distance(logits_of(model), logits_of(wanted)) < 0.05
    with pytest.raises(ValueError, match="do not multiply int8 activations: "):
        filler.weights(NATIVE[-1], "int8")


def test_bits_do_not_depend_on_chunks() -> None:
    _, model = Filler(plan_of("LlamaForCausalLM"), "one").model(NATIVE[-1])
    whole = logits_of(model)
    runner = PagedRunner(model)
    runner.step({"a": TOKENS[:7]})
    runner.step({"a": TOKENS[7:30], "b": TOKENS[:3]})

    assert torch.equal(runner.step({"a": TOKENS[30:]})["a"][-1], whole[-1])


def test_products_of_one_order_share_operands() -> None:
    """q_a and kv_a of latent attention read one norm, which writes operands of one order."""
    plan = plan_of("DeepseekV3ForCausalLM")
    encoded = {}
    for orders in ("none", "one", "of each matrix"):
        program = Filler(plan, orders).weights(NATIVE[-1]).program
        encoded[orders] = sum(op.kind == "encode" for op in program.ops)

    assert encoded["one"] == encoded["none"]
    assert (
        encoded["of each matrix"]
        == encoded["none"] + 2 * FIELDS["LlamaForCausalLM"]["num_hidden_layers"]
    )
