"""MPT: ALiBi, one tensor of queries, keys and values, and no biases."""

from __future__ import annotations

from collections.abc import Mapping

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, alibi_slopes
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import DecoderSpec, Head, LayerNorms, Sizes, decoder
from taco_worker.models.plan.mlp_block import plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames

_LAYER = "transformer.blocks.{layer}"
_RATIO = 4


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("no_bias", True)
    for name in ("block_overrides", "final_logit_softcapping", "logit_scale"):
        fields.only(name, None)
    fields.only("norm_type", "low_precision_layernorm", "layernorm")
    fields.only("expansion_ratio", _RATIO)
    mlp = _object(fields, "ffn_config")
    mlp.only("ffn_type", "mptmlp")
    mlp.only("ffn_act_fn", None)
    hidden_size = fields.size("d_model", "hidden_size")
    size = _RATIO * hidden_size
    up, down = Module(f"{_LAYER}.ffn.up_proj", size), Module(f"{_LAYER}.ffn.down_proj", hidden_size)
    spec = DecoderSpec(
        sizes=Sizes(
            fields.size("vocab_size"),
            hidden_size,
            fields.size("n_layers", "num_hidden_layers"),
            fields.size("max_seq_len", default=2048),
        ),
        attention=_attention(fields, architecture, hidden_size),
        mlp=plain_mlp(up, down, "gelu", bias=False),
        norm=layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5), bias=False),
        norms=LayerNorms(attn_in=f"{_LAYER}.norm_1", mlp_in=f"{_LAYER}.norm_2"),
        head=Head(tied=fields.flag("tie_word_embeddings", default=True)),
        embedding="transformer.wte",
        final_norm="transformer.norm_f",
        names=TensorNames(),
    )
    return decoder(architecture, spec)


def _attention(fields: ConfigFields, architecture: str, hidden_size: int) -> AttentionSpec:
    num_heads = fields.size("n_heads", "num_attention_heads")
    options = _object(fields, "attn_config")
    options.only("attn_type", "multihead_attention")
    options.only("kv_n_heads", num_heads)
    options.only("prefix_lm", False)
    options.only("qk_ln", False)
    options.only("rope", False)
    options.only("sliding_window_size", -1)
    # The class in the models' repositories has no ALiBi by default, that of transformers has.
    if not options.flag("alibi", default=architecture == "MptForCausalLM"):
        raise ValueError("attn_config without alibi is not supported")
    power = options.positive("alibi_bias_max", default=8.0) / 8
    heads = Heads(num_heads, num_heads, hidden_size // num_heads)
    return AttentionSpec(
        heads,
        heads.packed(f"{_LAYER}.attn.Wqkv"),
        Module(f"{_LAYER}.attn.out_proj", hidden_size),
        options.optional_positive("softmax_scale") or heads.head_dim**-0.5,
        clip=options.optional_positive("clip_qkv"),
        alibi=tuple(slope**power for slope in alibi_slopes(num_heads)),
    )


def _object(fields: ConfigFields, name: str) -> ConfigFields:
    given = fields.get(name, default={})
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} must be an object, not {given!r:.100}")
    return ConfigFields(given)
