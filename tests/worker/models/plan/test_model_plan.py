"""A plan that no back end could run is refused when it is built."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.ops.attend import Attend, WriteKV
from taco_worker.models.plan.ops.elementwise import Scale
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.ops.rope import Rope
from taco_worker.models.plan.parameters import Parameter
from taco_worker.models.plan.slices import Slice
from taco_worker.models.recipes import llama

FIELDS = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    return llama.plan(ConfigFields(FIELDS), "LlamaForCausalLM")


def test_sizes_of_a_plan(plan: ModelPlan) -> None:
    assert (plan.hidden_size, plan.embedding_size, plan.num_layers) == (64, 64, 2)
    assert plan.kv_elements_per_token == 2 * 2 * 2 * 16
    assert plan.has_rope
    assert not plan.has_tied_head
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert plan.num_elements == 2 * 100 * 64 + 2 * layer + 64


def test_a_buffer_is_read_before_it_is_written(plan: ModelPlan) -> None:
    with pytest.raises(ValueError, match=r"x\[0:64\] is read before it is written"):
        replace(plan, embedding=())


def test_columns_outside_a_buffer(plan: ModelPlan) -> None:
    beyond = Scale(Slice("x", 60, 5), 2.0)
    with pytest.raises(ValueError, match=r"x\[60:65\] is not inside its buffer of 64 columns"):
        replace(plan, embedding=(*plan.embedding, beyond))


def test_a_parameter_of_another_shape(plan: ModelPlan) -> None:
    name = "final_norm.weight"
    wrong = {**plan.parameters, name: Parameter(name, (63,), ())}
    with pytest.raises(ValueError, match=r"final_norm.weight is \(63,\), and Norm"):
        replace(plan, parameters=wrong)


def test_a_parameter_that_no_op_uses(plan: ModelPlan) -> None:
    more = {**plan.parameters, "spare": Parameter("spare", (1,), ())}
    with pytest.raises(ValueError, match="no op uses spare"):
        replace(plan, parameters=more)


def misfit(op: Op, kind: type[Op]) -> Op:
    """The op, with a size that fits nothing if it is of that kind."""
    match op:
        case Rope() if kind is Rope:
            return replace(op, head_dim=20)
        case WriteKV() if kind is WriteKV:
            return replace(op, key=Slice("qkv", 64, 31))
        case Attend() if kind is Attend:
            return replace(op, num_heads=3)
    return op


@pytest.mark.parametrize("kind", [Rope, WriteKV, Attend])
def test_an_op_that_does_not_fit_the_cache_or_the_table(plan: ModelPlan, kind: type[Op]) -> None:
    first, *others = plan.layers
    with pytest.raises(ValueError, match="does not fit"):
        replace(plan, layers=(tuple(misfit(op, kind) for op in first), *others))


def test_stored_names() -> None:
    names = TensorNames((("transformer.", ""), ("a.", "b.")), (r"\.mask$",))
    assert names.canonical("transformer.h.0") == "h.0"
    assert names.canonical("a.h.0") == "b.h.0"
    assert names.canonical("h.0") == "h.0"
    assert names.canonical("h.0.mask") is None


def test_parts_of_a_slice() -> None:
    part = Slice("qkv", 16, 32)
    assert part.columns(8, 8) == Slice("qkv", 24, 8)
    assert part.overlaps(Slice("qkv", 47, 9))
    assert not part.overlaps(Slice("qkv", 48, 9))
    assert not part.overlaps(Slice("x", 16, 32))
    for start, size in ((-1, 4), (0, 33), (30, 3), (0, 0)):
        with pytest.raises(ValueError, match="are not inside"):
            part.columns(start, size)
