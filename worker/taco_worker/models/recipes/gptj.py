"""GPT-J: attention and MLP read one norm; interleaved rotation of a part of each head."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import (
    DecoderSpec,
    Head,
    LayerNorms,
    Rotary,
    Sizes,
    decoder,
)
from taco_worker.models.plan.mlp_block import plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.rope import RotaryConfig

_LAYER = "transformer.h.{layer}"
# Causal masks are stored as buffers.
_NAMES = TensorNames(ignored=(r"\.attn\.((masked_)?bias|causal_mask)$",))
_THETA = 10_000.0  # no field changes it


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("rotary", True)
    return decoder(architecture, gptj_spec(fields))


def gptj_spec(fields: ConfigFields) -> DecoderSpec:
    hidden_size, num_heads = fields.size("n_embd"), fields.size("n_head")
    heads = Heads(num_heads, num_heads, hidden_size // num_heads)
    # Null rotates a whole head.
    rotary_dim = heads.head_dim
    if "rotary_dim" not in fields.values or fields.values["rotary_dim"] is not None:
        rotary_dim = fields.size("rotary_dim", default=64)
    if rotary_dim > heads.head_dim:
        raise ValueError(f"rotary_dim is {rotary_dim}, and a head has {heads.head_dim} numbers")
    rotary = RotaryConfig(_THETA, None, rotary_dim / heads.head_dim)
    size = fields.optional_size("n_inner") or 4 * hidden_size
    activation = fields.activation("activation_function", default="gelu_new")
    up, down = (
        Module(f"{_LAYER}.mlp.{name}", width)
        for name, width in (("fc_in", size), ("fc_out", hidden_size))
    )
    return DecoderSpec(
        sizes=Sizes(
            fields.size("vocab_size"),
            hidden_size,
            fields.size("n_layer"),
            fields.size("n_positions"),
        ),
        attention=AttentionSpec(
            heads,
            heads.separate(*(f"{_LAYER}.attn.{name}_proj" for name in "qkv")),
            Module(f"{_LAYER}.attn.out_proj", hidden_size),
            heads.head_dim**-0.5,
        ),
        mlp=plain_mlp(up, down, activation),
        norm=layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5)),
        norms=LayerNorms(attn_in=f"{_LAYER}.ln_1", mlp_in=None, sums="parallel"),
        rotary=Rotary(settings={"rope": rotary}, style="interleaved"),
        head=Head(tied=fields.flag("tie_word_embeddings", default=False), bias=True),
        embedding="transformer.wte",
        final_norm="transformer.ln_f",
        names=_NAMES,
    )
