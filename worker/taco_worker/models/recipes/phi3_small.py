"""Phi 3 small: block-sparse attention in most layers, and a clipped gated GELU."""

from __future__ import annotations

from dataclasses import replace

from taco_kernels.attention_options import BlockSparse
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import ATTENTION, MLP, Head, Rotary, decoder
from taco_worker.models.plan.llama_block import llama_attention, llama_spec, read_heads
from taco_worker.models.plan.mlp_block import MlpSpec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import EveryRow
from taco_worker.models.rope import LinearScaling, RotaryConfig
from taco_worker.models.rope_parsing import parse_rotary

_TOKENS = 16  # that the CPU kernels attend to at once


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("hidden_act", "gegelu")
    fields.only("ff_dim_multiplier", None)
    fields.only("tie_word_embeddings", True)
    heads = read_heads(fields)
    attention = llama_attention(fields, heads, qkv_bias=True, out_bias=True, out="dense")
    attention = replace(attention, qkv=heads.grouped(f"{ATTENTION}.query_key_value"))
    if fields.flag("mup_use_scaling", default=True):
        multiplier = fields.positive("mup_attn_multiplier", default=1.0)
        attention = replace(attention, scale=multiplier / heads.head_dim)
    spec = llama_spec(
        fields,
        attention=attention,
        mlp=_mlp(fields),
        norm=layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5)),
        rotary=Rotary(settings={"rope": _rotary(fields)}),
        block_sparse=_block_sparse(fields, heads.num_heads),
        embedding_scale=fields.positive("mup_embedding_multiplier", default=10.0),
        head=Head(tied=True, scale=1 / fields.positive("mup_width_multiplier", default=8.0)),
        final_norm="model.final_layernorm",
    )
    return decoder(architecture, spec)


def _mlp(fields: ConfigFields) -> MlpSpec:
    """Rows of gate and up alternate; "gegelu" is the activation of gpt-oss."""
    size, name = fields.size("ff_intermediate_size"), f"{MLP}.up_proj"
    up = [Module(name, size, (EveryRow(start, 2),)) for start in (0, 1)]
    down = Module(f"{MLP}.down_proj", fields.size("hidden_size"))
    limit = fields.positive("gegelu_limit", default=20.0)
    return MlpSpec(size, "swiglu_clipped", up, down, True, True, True, limit)


def _rotary(fields: ConfigFields) -> RotaryConfig:
    """`rope_position_scale` applies without long factors only."""
    rotary = parse_rotary(fields.values, default_theta=1e6)
    scale = fields.positive("rope_position_scale", default=1.0)
    if rotary.scaling is None and scale != 1:
        return replace(rotary, scaling=LinearScaling(scale))
    return rotary


def _block_sparse(fields: ConfigFields, num_heads: int) -> list[BlockSparse | None]:
    size = fields.size("blocksparse_block_size", default=64)
    if size % _TOKENS:
        raise ValueError(f"blocksparse_block_size must be a multiple of {_TOKENS}, not {size}")
    local = fields.size("blocksparse_num_local_blocks", default=16)
    stride = fields.size("blocksparse_vert_stride", default=8)
    shares_pattern = fields.flag("blocksparse_homo_head_pattern", default=False)
    head_step = 0 if shares_pattern else max(1, stride // num_heads)
    name = "dense_attention_every_n_layers"  # null: none is dense
    period = fields.optional_size(name) if name in fields.values else 2
    return [
        None if period and layer % period == 0 else BlockSparse(size, local, stride, head_step)
        for layer in range(1, 1 + fields.size("num_hidden_layers"))
    ]
