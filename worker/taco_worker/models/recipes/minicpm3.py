"""MiniCPM 3: MiniCPM with DeepSeek's latent attention."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import PlanBuilder, rms
from taco_worker.models.plan.decoder_block import LLAMA_NAMES, MLP
from taco_worker.models.plan.latent_attention_block import latent_attention
from taco_worker.models.plan.mlp_block import gated_mlp, mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.deepseek import attention_spec
from taco_worker.models.recipes.minicpm import block_scale, hidden_scale
from taco_worker.models.rope import scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary

_LAYER = "model.layers.{layer}"
# Of configs without the fields.
_SIZES = {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    value_dim = fields.optional_size("v_head_dim") or hidden_size // num_heads
    fields = ConfigFields(
        {**_SIZES, **fields.values, "v_head_dim": value_dim, "rope_interleave": False}
    )
    norm = rms(fields.epsilon("rms_norm_eps", default=1e-5))
    rotary = parse_rotary(fields.values)
    rotary.check_whole_heads()
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=hidden_size)
    attention = attention_spec(b, fields, rotary, architecture)
    feed_forward = gated_mlp(
        MLP,
        fields.size("intermediate_size"),
        hidden_size,
        fields.activation("hidden_act", default="silu"),
        bias=fields.flag("mlp_bias", default=False),
    )
    scale = block_scale(fields)
    b.embed("model.embed_tokens", scale=fields.positive("scale_emb"))
    for _ in range(fields.size("num_hidden_layers")):
        with b.layer():
            h = b.norm(b.stream, "attn_norm", f"{_LAYER}.input_layernorm", norm)
            b.residual(latent_attention(b, h, attention), scale=scale)
            h = b.norm(b.stream, "mlp_norm", f"{_LAYER}.post_attention_layernorm", norm)
            b.residual(mlp(b, h, feed_forward), scale=scale)
    b.final_norm("model.norm", norm)
    tied = fields.flag("tie_word_embeddings", default=True)
    b.head("lm_head", tied=tied, scale=hidden_scale(fields))
    length = scaled_max_position_embeddings(rotary, fields.size("max_position_embeddings"))
    return b.build(architecture, length, LLAMA_NAMES)
