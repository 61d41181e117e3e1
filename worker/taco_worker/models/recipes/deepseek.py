"""DeepSeek V2 and V3, and Kimi K2, which is a V3: multi-head latent attention."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import PlanBuilder, rms
from taco_worker.models.plan.decoder_block import LLAMA_NAMES
from taco_worker.models.plan.latent_attention_block import LatentAttentionSpec, latent_attention
from taco_worker.models.plan.mlp_block import gated_mlp, mlp, moe
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.recipes.deepseek_experts import mixture_of_experts
from taco_worker.models.rope import RotaryConfig, YarnScaling, scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary

_LAYER = "model.layers.{layer}"
_V2 = "DeepseekV2ForCausalLM"


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    hidden_size, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    num_dense = fields.count("first_k_dense_replace", default=0 if architecture == _V2 else 3)
    mixture = mixture_of_experts(fields, architecture) if num_dense < num_layers else None
    norm = rms(fields.epsilon("rms_norm_eps", default=1e-6))
    rotary = parse_rotary(fields.values)
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=hidden_size)
    attention = attention_spec(b, fields, rotary, architecture)
    activation = fields.activation("hidden_act", default="silu")
    dense = gated_mlp(f"{_LAYER}.mlp", fields.size("intermediate_size"), hidden_size, activation)
    b.embed("model.embed_tokens")
    for _ in range(num_layers):
        with b.layer() as layer:
            h = b.norm(b.stream, "attn_norm", f"{_LAYER}.input_layernorm", norm)
            b.residual(latent_attention(b, h, attention))
            h = b.norm(b.stream, "mlp_norm", f"{_LAYER}.post_attention_layernorm", norm)
            if mixture is None or layer < num_dense:
                b.residual(mlp(b, h, dense))
            else:
                b.residual(moe(b, h, mixture))
    b.final_norm("model.norm", norm)
    b.head("lm_head", tied=fields.flag("tie_word_embeddings", default=False))
    length = scaled_max_position_embeddings(rotary, fields.size("max_position_embeddings"))
    return b.build(architecture, length, tensor_names(fields))


def attention_spec(
    b: PlanBuilder, fields: ConfigFields, rotary: RotaryConfig, architecture: str
) -> LatentAttentionSpec:
    nope_dim, rope_dim = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
    fields.only("num_key_value_heads", fields.size("num_attention_heads"))
    scale = (nope_dim + rope_dim) ** -0.5
    if isinstance(rotary.scaling, YarnScaling):
        scale *= rotary.scaling.score_factor
    rotary.check(rope_dim)
    interleaved = architecture == _V2 or fields.flag("rope_interleave", default=True)
    return LatentAttentionSpec(
        f"{_LAYER}.self_attn",
        fields.size("num_attention_heads"),
        fields.nullable_size("q_lora_rank"),
        fields.size("kv_lora_rank"),
        nope_dim,
        rope_dim,
        fields.size("v_head_dim"),
        scale,
        b.rope_table("rope", rotary, rope_dim),
        "interleaved" if interleaved else "half",
        bias=fields.flag("attention_bias", default=False),
    )


def tensor_names(fields: ConfigFields) -> TensorNames:
    """Without the layers after the last, which predict further tokens (V3 and GLM 4.5)."""
    num_layers = fields.size("num_hidden_layers")
    extra = fields.count("num_nextn_predict_layers", default=0)
    if extra > num_layers:
        raise ValueError(f"num_nextn_predict_layers {extra} is more than num_hidden_layers")
    layers = "|".join(str(num_layers + index) for index in range(extra))
    ignored = (rf"^model\.layers\.({layers})\.",) if extra else ()
    return replace(LLAMA_NAMES, ignored=(*LLAMA_NAMES.ignored, *ignored))
