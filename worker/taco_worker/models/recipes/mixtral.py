"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, RopeSpec, attention
from taco_worker.models.plan.builder import Module, PlanBuilder, rms
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts, moe
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.rope import scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary

_LAYER = "model.layers.{layer}"
_MOE = f"{_LAYER}.block_sparse_moe"


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    hidden_size = fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    head_dim = fields.optional_size("head_dim") or hidden_size // num_heads
    heads = Heads(num_heads, fields.size("num_key_value_heads", default=num_heads), head_dim)
    norm = rms(fields.epsilon("rms_norm_eps", default=1e-5))
    rotary = parse_rotary(fields.values)
    rotary_dim = rotary.rotary_dim(head_dim)
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=hidden_size)
    spec = AttentionSpec(
        heads,
        heads.separate(*(f"{_LAYER}.self_attn.{name}_proj" for name in "qkv")),
        Module(f"{_LAYER}.self_attn.o_proj", hidden_size),
        head_dim**-0.5,
        RopeSpec(b.rope_table("rope", rotary, rotary_dim), rotary_dim),
        window=fields.optional_size("sliding_window"),
    )
    mixture = mixture_of_experts(fields)
    b.embed("model.embed_tokens")
    for _ in range(fields.size("num_hidden_layers")):
        with b.layer():
            h = b.norm(b.stream, "attn_norm", f"{_LAYER}.input_layernorm", norm)
            b.residual(attention(b, h, spec))
            h = b.norm(b.stream, "mlp_norm", f"{_LAYER}.post_attention_layernorm", norm)
            b.residual(moe(b, h, mixture))
    b.final_norm("model.norm", norm)
    b.head("lm_head", tied=fields.flag("tie_word_embeddings", default=False))
    length = scaled_max_position_embeddings(rotary, fields.size("max_position_embeddings"))
    return b.build(architecture, length, TensorNames(ignored=(r"\.rotary_emb\.inv_freq$",)))


def mixture_of_experts(fields: ConfigFields) -> MoeSpec:
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    gate_up, down = expert_layouts(f"{_MOE}.experts", size, hidden_size, ("w1", "w3", "w2"))
    return MoeSpec(
        fields.size("num_local_experts", default=8),
        fields.size("num_experts_per_tok", default=2),
        size,
        fields.activation("hidden_act", default="silu"),
        "softmax",
        renormalize=True,
        router=(f"{_MOE}.gate", f"{_LAYER}.mlp.gate"),
        gate_up=gate_up,
        down=down,
    )
