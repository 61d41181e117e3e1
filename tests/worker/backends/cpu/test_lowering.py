"""Lowered programs: buffers are written before they are read, and ops are fused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from taco_worker.backends.cpu.lowered_ops import LoweredProgram, MatrixType
from taco_worker.backends.cpu.lowering import lower_plan
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.elementwise import Add, Scale
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.slices import Slice
from taco_worker.models.registry import find_recipe

TYPES: tuple[MatrixType, ...] = ("f32", "bf16", "i8")
LLAMA = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
OPT = {**LLAMA, "ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False}
GPT2 = {"vocab_size": 100, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128}
DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    "q_lora_rank": None,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 40,
}
CASES: dict[str, dict[str, Any]] = {
    "DeepseekV3ForCausalLM": DEEPSEEK,
    "LlamaForCausalLM": LLAMA,
    "OPTForCausalLM": OPT,
    "GPT2LMHeadModel": GPT2,
}


def plan_of(architecture: str, fields: dict[str, Any]) -> ModelPlan:
    return find_recipe([architecture])[1](ConfigFields(fields), architecture)


def lowered(plan: ModelPlan, kind: MatrixType) -> LoweredProgram:
    matrices = [name for name, parameter in plan.parameters.items() if len(parameter.shape) > 1]
    return lower_plan(plan, dict.fromkeys(matrices, kind))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("architecture", CASES)
def test_buffers_are_written_before_they_are_read(architecture: str, kind: MatrixType) -> None:
    program = lowered(plan_of(architecture, CASES[architecture]), kind)
    written: set[str] = set()
    for stage in program.stages:
        in_stage: set[str] = set()
        for op in program.ops[stage.first : stage.first + stage.count]:
            for part in op.reads:
                buffer = program.buffers[part.buffer]
                assert part.buffer in (in_stage if buffer.is_local else written | in_stage)
                assert part.start + part.size <= buffer.columns
            in_stage |= {part.buffer for part in op.writes}
        written |= in_stage
    assert program.hidden in written
    assert not program.buffers[program.hidden].is_local


@pytest.mark.parametrize("architecture", CASES)
def test_stages_cover_all_ops_in_order(architecture: str) -> None:
    program = lowered(plan_of(architecture, CASES[architecture]), "bf16")
    assert program.stages[0].first == 0
    for one, following in pairwise(program.stages):
        assert one.first + one.count == following.first
        assert one.by_chunks or one.count == 1
        assert not (one.by_chunks and following.by_chunks)
    last = program.stages[-1]
    assert last.first + last.count == len(program.ops)


def test_a_layer_of_llama_is_nine_ops() -> None:
    program = lowered(plan_of("LlamaForCausalLM", LLAMA), "bf16")
    kinds = [op.kind for op in program.ops]
    layer = ["norm", "linear", "rope", "write_kv", "attend", "linear", "norm", "linear", "linear"]
    assert kinds[1:10] == layer
    gate, down = program.ops[8], program.ops[9]
    assert (gate.epilogue, gate.activation, down.epilogue) == ("gate_mul", "silu", "add")
    assert program.gated == {f"layers.{i}.mlp.gate_up_proj.weight" for i in range(3)}
    assert "encode" not in kinds


def test_int8_operands_are_encoded_from_bfloat16_where_no_kernel_writes_them() -> None:
    program = lowered(plan_of("LlamaForCausalLM", LLAMA), "i8")
    encoded = [op.x.buffer for op in program.ops if op.kind == "encode" and op.x is not None]
    assert [name.partition(".")[0] for name in encoded] == ["attended", "inner"] * 3
    assert {program.buffers[name].type for name in encoded} == {"bf16"}
    assert not program.buffers.keys() & {"attended", "inner"}


@pytest.mark.parametrize("kind", TYPES)
def test_operands_of_heads_are_local_and_grouped(kind: MatrixType) -> None:
    program = lowered(plan_of("DeepseekV3ForCausalLM", DEEPSEEK), kind)
    products = [op for op in program.ops if op.kind == "head_linear"]
    assert len(products) == 2 * 3
    for op in products:
        assert (op.y is None) == (kind == "f32")
        if op.y is not None:
            buffer = program.buffers[op.y.buffer]
            assert (buffer.type, buffer.num_groups, buffer.is_local) == (kind, 4, True)


def test_the_last_attention_is_restricted_to_the_live_buffers() -> None:
    program = lowered(plan_of("LlamaForCausalLM", LLAMA), "bf16")
    restrictions = [op for op in program.ops if op.kind == "restrict_rows"]
    assert [(set(op.live), op.is_final) for op in restrictions] == [
        ({"x", "qkv"}, False),
        ({"x"}, True),
    ]
    assert {name for name, buffer in program.buffers.items() if buffer.is_restricted} == {
        "x",
        "qkv",
    }


def test_a_sum_that_another_op_reads_is_not_fused() -> None:
    plan = plan_of("LlamaForCausalLM", LLAMA)
    first, *others = plan.layers
    index = next(i for i, op in enumerate(first) if isinstance(op, Add))
    out = first[index].reads[1]
    again: Op = Scale(out, 2.0)
    ops = (*first[: index + 1], again, *first[index + 1 :])
    program = lowered(replace(plan, layers=(ops, *others)), "bf16")
    kinds = [op.kind for op in program.ops]
    assert kinds[6:9] == ["linear", "add", "scale"]


def test_an_op_that_the_kernels_lack() -> None:
    plan = plan_of("LlamaForCausalLM", LLAMA)
    assert plan.logits_out is not None
    logits = (*plan.logits, Add(plan.logits_out, Slice("hidden", 0, 100)))
    changed = replace(plan, buffers={**plan.buffers, "hidden": 100}, logits=logits)
    with pytest.raises(ValueError, match="the CPU kernels have no Add of logits here"):
        lowered(changed, "f32")
