"""Nemotron-H: each layer is one block: Mamba 2, attention without positions, or an MLP."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, attention
from taco_worker.models.plan.builder import Module, NormSpec, PlanBuilder, rms
from taco_worker.models.plan.mamba_block import MambaSpec, mamba
from taco_worker.models.plan.mlp_block import mlp, plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.slices import Slice
from taco_worker.models.recipes.nemotron_h_fields import block_kinds, check_ignored

_LAYER = "model.layers.{layer}"
_MIXER = f"{_LAYER}.mixer"
_NAMES = TensorNames((("backbone.", "model."),), ignored=(r"^mtp\.",))
_Block = Callable[[PlanBuilder, Slice], Slice]


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    check_ignored(fields)
    kinds = block_kinds(fields)
    norm = rms(fields.epsilon("layer_norm_epsilon", default=1e-5))
    blocks: dict[str, Callable[[], _Block]] = {
        "M": lambda: partial(mamba, spec=_mamba(fields, norm)),
        "*": lambda: partial(attention, spec=_attention(fields)),
        "-": lambda: _mlp(fields),
    }
    made = {kind: blocks[kind]() for kind in dict.fromkeys(kinds)}
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=fields.size("hidden_size"))
    b.embed("model.embeddings")
    for kind in kinds:
        with b.layer():
            x = b.norm(b.stream, "norm", f"{_LAYER}.norm", norm)
            b.residual(made[kind](b, x))
    b.final_norm("model.norm_f", norm)
    b.head("lm_head")
    return b.build(architecture, fields.size("max_position_embeddings"), _NAMES)


def _attention(fields: ConfigFields) -> AttentionSpec:
    head_dim = fields.size("head_dim", default=128)
    heads = Heads(fields.size("num_attention_heads"), fields.size("num_key_value_heads"), head_dim)
    names = (f"{_MIXER}.{name}_proj" for name in "qkv")
    out = Module(f"{_MIXER}.o_proj", fields.size("hidden_size"))
    return AttentionSpec(heads, heads.separate(*names), out, head_dim**-0.5)


def _mlp(fields: ConfigFields) -> _Block:
    up = Module(f"{_MIXER}.up_proj", fields.size("intermediate_size"))
    down = Module(f"{_MIXER}.down_proj", fields.size("hidden_size"))
    activation = fields.activation("mlp_hidden_act", default="relu2")
    bias = fields.flag("mlp_bias", default=False)
    return partial(mlp, spec=plain_mlp(up, down, activation, bias=bias))


def _mamba(fields: ConfigFields, norm: NormSpec) -> MambaSpec:
    bias = fields.flag("use_bias", default=False)
    return MambaSpec(
        module=_MIXER,
        num_heads=fields.size("mamba_num_heads", default=128),
        head_dim=fields.size("mamba_head_dim", default=64),
        num_groups=fields.size("mamba_n_groups", "n_groups", default=8),
        state_size=fields.size("ssm_state_size", default=128),
        width=fields.size("mamba_d_conv", "conv_kernel", default=4),
        norm=norm,
        conv_bias=fields.flag("mamba_conv_bias", "use_conv_bias", default=True),
        in_bias=bias,
        out_bias=bias,
        step_limits=(fields.epsilon("mamba_dt_min", "time_step_min", default=1e-3), math.inf),
    )
