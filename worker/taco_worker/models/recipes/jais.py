"""Jais: GPT-2 with ALiBi, a gated MLP, and factors on embeddings and logits."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, alibi_slopes, attention
from taco_worker.models.plan.builder import Module, PlanBuilder, layer_norm
from taco_worker.models.plan.mlp_block import MlpSpec, mlp, plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.ops.elementwise import Scale
from taco_worker.models.plan.views import Transpose

# Files of the bare model lack the prefix; masks and slopes are stored as buffers.
_NAMES = TensorNames(
    (("transformer.", ""),), (r"\.attn\.(masked_)?bias$", r"^(transformer\.)?relative_pe\.")
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    for name in ("add_cross_attention", "scale_attn_by_inverse_layer_idx"):
        fields.only(name, False)
    fields.only("position_embedding_type", "learned", "alibi")
    hidden_size, length = fields.size("n_embd"), fields.size("n_positions", default=1024)
    norm = layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5))
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=hidden_size)
    b.embed("wte")
    if fields.get("position_embedding_type") != "alibi":
        b.embed_positions("wpe", length)
    # Older configs lack the prefix mup.
    b.add(Scale(b.stream, fields.number("mup_embeddings_scale", "embeddings_scale", default=1.0)))
    spec, feed_forward = _attention(fields), _mlp(fields)
    for _ in range(fields.size("n_layer")):
        with b.layer():
            h = b.norm(b.stream, "attn_norm", "h.{layer}.ln_1", norm)
            b.residual(attention(b, h, spec))
            h = b.norm(b.stream, "mlp_norm", "h.{layer}.ln_2", norm)
            b.residual(mlp(b, h, feed_forward))
    b.final_norm("ln_f", norm)
    scale = fields.number("mup_width_scale", default=1.0)
    scale *= fields.number("mup_output_alpha", default=1.0)
    scale = fields.number("width_scale", default=scale)
    b.head("lm_head", tied=fields.flag("tie_word_embeddings", default=True), scale=scale)
    scaling = ConfigFields(fields.get("alibi_scaling", default={}))
    if scaling.get("factor") is None:
        # Beyond it, slopes depend on each sequence's length.
        length = min(length, scaling.size("train_seq_len", default=length))
    return b.build(architecture, length, _NAMES)


def _attention(fields: ConfigFields) -> AttentionSpec:
    hidden_size, num_heads = fields.size("n_embd"), fields.size("n_head")
    heads = Heads(num_heads, num_heads, hidden_size // num_heads)
    power = fields.flag("mup_scale_qk_dot_by_d", "scale_qk_dot_by_d", default=False)
    is_scaled = fields.flag("scale_attn_weights", default=True)
    scaling = ConfigFields(fields.get("alibi_scaling", default={}))
    slopes = None
    if fields.get("position_embedding_type") == "alibi":
        factor = scaling.positive("factor", default=1.0)
        slopes = tuple(slope / factor for slope in alibi_slopes(num_heads))
    return AttentionSpec(
        heads,
        heads.packed("h.{layer}.attn.c_attn", Transpose()),
        Module("h.{layer}.attn.c_proj", hidden_size, (Transpose(),)),
        heads.head_dim ** (-1.0 if power else -0.5) if is_scaled else 1.0,
        qkv_bias=True,
        out_bias=True,
        alibi=slopes,
    )


def _mlp(fields: ConfigFields) -> MlpSpec:
    hidden_size = fields.size("n_embd")
    size = fields.optional_size("n_inner") or 4 * hidden_size
    up, gate = (
        Module(f"h.{{layer}}.mlp.{name}", size, (Transpose(),)) for name in ("c_fc", "c_fc2")
    )
    down = Module("h.{layer}.mlp.c_proj", hidden_size, (Transpose(),))
    if fields.get("activation_function") == "swiglu":
        return MlpSpec(size, "silu", [gate, up], down, True, True, True)
    return plain_mlp(up, down, fields.activation("activation_function", default="gelu_new"))
