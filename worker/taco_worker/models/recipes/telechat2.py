"""TeleChat 2: Llama with biases on outputs, and one tensor of keys and values."""

from __future__ import annotations

import math
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads
from taco_worker.models.plan.builder import Module, rms
from taco_worker.models.plan.decoder_block import (
    DecoderSpec,
    Head,
    LayerNorms,
    Rotary,
    Sizes,
    decoder,
)
from taco_worker.models.plan.mlp_block import gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.views import GroupedRows
from taco_worker.models.rope import RotaryConfig, scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary

_LAYER = "transformer.h.{layer}"
_ATTENTION = f"{_LAYER}.self_attention"
_NAMES = TensorNames(ignored=(r"\.rotary_emb\.inv_freq$",))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("apply_residual_connection_post_layernorm", False)
    fields.only("embed_layernorm", False)
    fields.only("hidden_act", "silu")
    hidden_size = fields.size("hidden_size", "n_embed")
    num_heads = fields.size("n_head")
    dim = hidden_size // num_heads
    heads = Heads(num_heads, fields.optional_size("num_key_value_heads") or num_heads, dim)
    # Beyond this length the published code scales positions by each sequence's length.
    length = fields.size("training_seqlen", default=8192)
    rotary = _rotary(fields, length, dim)
    # For each KV head, its key, then its value.
    parts = (GroupedRows(heads.num_kv_heads, 2 * dim, start, dim) for start in (0, dim))
    key_value = [Module(f"{_ATTENTION}.key_value", heads.kv_size, (part,)) for part in parts]
    mlp = gated_mlp(f"{_LAYER}.mlp", fields.size("ffn_hidden_size"), hidden_size)
    spec = DecoderSpec(
        sizes=Sizes(
            fields.size("vocab_size"),
            hidden_size,
            fields.size("n_layer"),
            scaled_max_position_embeddings(rotary, length),
        ),
        attention=AttentionSpec(
            heads,
            [Module(f"{_ATTENTION}.query", hidden_size), *key_value],
            Module(f"{_ATTENTION}.dense", hidden_size),
            dim**-0.5,
            out_bias=True,
        ),
        mlp=replace(mlp, down_bias=True),
        norm=rms(fields.epsilon("layer_norm_epsilon", default=1e-5)),
        norms=LayerNorms(
            attn_in=f"{_LAYER}.input_layernorm", mlp_in=f"{_LAYER}.post_attention_layernorm"
        ),
        rotary=Rotary(settings={"rope": rotary}),
        head=Head(tied=fields.flag("tie_word_embeddings", default=True)),
        embedding="transformer.word_embeddings",
        final_norm="transformer.ln_f",
        names=_NAMES,
    )
    return decoder(architecture, spec)


def _rotary(fields: ConfigFields, length: int, dim: int) -> RotaryConfig:
    """Theta grows with the training length, as in Qwen's dynamic NTK."""
    rotary = parse_rotary({**fields.values, "max_position_embeddings": length})
    rotary.check_whole_heads()
    rotary.check(dim)
    doublings = math.ceil(math.log2(length / fields.size("base_seqlen")) + 1)
    growth = max(2.0**doublings - 1, 1.0)
    return replace(rotary, theta=rotary.theta * growth ** (dim / (dim - 2)))
