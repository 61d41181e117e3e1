"""DeciLM and Nemotron-NAS: Llama with other KV heads and MLPs, or none, in each layer."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import Heads, RopeSpec, attention
from taco_worker.models.plan.builder import PlanBuilder, rms
from taco_worker.models.plan.decoder_block import LAYER, LLAMA_NAMES
from taco_worker.models.plan.llama_block import llama_attention, read_heads
from taco_worker.models.plan.mlp_block import mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.decilm_layers import layer_kv_heads, layer_mlps
from taco_worker.models.rope import scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("position_embedding_type", "rope")
    rotary = parse_rotary(fields.values)
    rotary.check_whole_heads()
    heads = read_heads(fields)
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=fields.size("hidden_size"))
    rotary_dim = rotary.rotary_dim(heads.head_dim)
    rope = RopeSpec(b.rope_table("rope", rotary, rotary_dim), rotary_dim)
    bias = fields.flag("attention_bias", default=False)
    norm = rms(fields.epsilon("rms_norm_eps", default=1e-6))
    b.embed("model.embed_tokens")
    layers = zip(layer_kv_heads(fields), layer_mlps(fields), strict=True)
    for num_kv_heads, feed_forward in layers:
        with b.layer():
            if num_kv_heads is not None:
                own = Heads(heads.num_heads, num_kv_heads, heads.head_dim)
                spec = llama_attention(fields, own, qkv_bias=bias, out_bias=bias)
                h = b.norm(b.stream, "attn_norm", f"{LAYER}.input_layernorm", norm)
                b.residual(attention(b, h, replace(spec, rope=rope)))
            if feed_forward is not None:
                h = b.norm(b.stream, "mlp_norm", f"{LAYER}.post_attention_layernorm", norm)
                b.residual(mlp(b, h, feed_forward))
    b.final_norm("model.norm", norm)
    b.head("lm_head", tied=fields.flag("tie_word_embeddings", default=False))
    length = scaled_max_position_embeddings(rotary, fields.size("max_position_embeddings"))
    return b.build(architecture, length, LLAMA_NAMES)
