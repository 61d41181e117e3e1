"""Kimi Linear: Kimi Delta Attention in most layers, latent attention in the others, and experts."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import PlanBuilder, rms
from taco_worker.models.plan.decoder_block import ATTENTION, LAYER, LLAMA_NAMES
from taco_worker.models.plan.delta_block import renamed_in_layers
from taco_worker.models.plan.latent_attention_block import LatentAttentionSpec, latent_attention
from taco_worker.models.plan.llama_block import llama_mlp
from taco_worker.models.plan.mlp_block import mlp, moe
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.kimi_linear_experts import has_experts, mixture
from taco_worker.models.recipes.kimi_linear_layers import delta_layers

# Published names, and those of transformers.
_RENAMED = {"block_sparse_moe": "mlp", "self_attn.forget_gate": "self_attn"}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("tie_word_embeddings", False)  # the published code ignores it
    hidden_size, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    norm = rms(fields.epsilon("rms_norm_eps", default=1e-5))
    latent, dense, experts = latent_spec(fields), llama_mlp(fields), mixture(fields)
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=hidden_size)
    b.embed("model.embed_tokens")
    for mixer, is_sparse in zip(delta_layers(fields), has_experts(fields), strict=True):
        with b.layer():
            h = b.norm(b.stream, "attn_norm", f"{LAYER}.input_layernorm", norm)
            b.residual(latent_attention(b, h, latent) if mixer is None else mixer(b, h))
            h = b.norm(b.stream, "mlp_norm", f"{LAYER}.post_attention_layernorm", norm)
            b.residual(moe(b, h, experts) if is_sparse else mlp(b, h, dense))
    b.final_norm("model.norm", norm)
    b.head("lm_head")
    length = fields.size("model_max_length", "max_position_embeddings")
    return b.build(architecture, length, renamed_in_layers(LLAMA_NAMES, num_layers, _RENAMED))


def latent_spec(fields: ConfigFields) -> LatentAttentionSpec:
    """Latent attention without rotary positions."""
    fields.only("mla_use_nope", True)
    num_heads = fields.size("num_attention_heads")
    fields.only("num_key_value_heads", num_heads)
    plain, shared = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
    return LatentAttentionSpec(
        ATTENTION,
        num_heads,
        fields.optional_size("q_lora_rank"),
        fields.size("kv_lora_rank"),
        plain,
        shared,
        fields.size("v_head_dim"),
        (plain + shared) ** -0.5,
        table=None,
        style="half",
        bias=fields.flag("attention_bias", default=False),
    )
