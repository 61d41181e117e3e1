"""Qwen, the first one: rotary positions, log-n attention and a gate that is stored second."""

from __future__ import annotations

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
from taco_worker.models.rope import NtkScaling, RotaryConfig, scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary

_LAYER = "transformer.h.{layer}"
_NAMES = TensorNames(ignored=(r"^transformer\.rotary_emb\.inv_freq$",))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("no_bias", True)
    fields.only("rotary_pct", 1.0)
    fields.only("scale_attn_weights", True)
    fields.only("tie_word_embeddings", False)
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    heads = Heads(num_heads, num_heads, fields.size("kv_channels", default=128))
    fields.only("kv_channels", hidden_size // num_heads)
    trained_length = fields.size("seq_length")
    uses_log_n = fields.flag("use_logn_attn", default=True)
    rotary = _rotary(fields, trained_length)
    # The field counts both gate and up.
    both = fields.size("intermediate_size")
    if both % 2:
        raise ValueError(f"intermediate_size must be even, not {both}")
    spec = DecoderSpec(
        sizes=Sizes(
            fields.size("vocab_size"),
            hidden_size,
            fields.size("num_hidden_layers"),
            scaled_max_position_embeddings(rotary, fields.size("max_position_embeddings")),
        ),
        attention=AttentionSpec(
            heads,
            heads.packed(f"{_LAYER}.attn.c_attn"),
            Module(f"{_LAYER}.attn.c_proj", hidden_size),
            heads.head_dim**-0.5,
            qkv_bias=True,
            log_n=trained_length if uses_log_n else None,
        ),
        mlp=gated_mlp(f"{_LAYER}.mlp", both // 2, hidden_size, names=("w2", "w1", "c_proj")),
        norm=rms(fields.epsilon("layer_norm_epsilon", default=1e-6)),
        norms=LayerNorms(attn_in=f"{_LAYER}.ln_1", mlp_in=f"{_LAYER}.ln_2"),
        rotary=Rotary(settings={"rope": rotary}),
        head=Head(tied=False),
        embedding="transformer.wte",
        final_norm="transformer.ln_f",
        names=_NAMES,
    )
    return decoder(architecture, spec)


def _rotary(fields: ConfigFields, trained_length: int) -> RotaryConfig:
    """Settings of --rope-scaling replace the published growth of theta."""
    rotary = parse_rotary(fields.values)
    rotary.check_whole_heads()
    if rotary.scaling is None and fields.flag("use_dynamic_ntk", default=True):
        return RotaryConfig(rotary.theta, NtkScaling(trained_length))
    return rotary
