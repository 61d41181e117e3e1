"""GPT-2: learned positions, fused QKV in the checkpoint, matrices stored as [in, out]."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, attention
from taco_worker.models.plan.builder import Module, PlanBuilder, layer_norm
from taco_worker.models.plan.mlp_block import mlp, plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.views import Transpose

# Bare GPT2Model files lack the prefix; causal masks are stored as buffers.
_NAMES = TensorNames((("transformer.", ""),), (r"\.attn\.(masked_)?bias$",))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("add_cross_attention", False)
    hidden_size, num_heads = fields.size("n_embd"), fields.size("n_head")
    length = fields.size("n_positions")
    head_dim = hidden_size // num_heads
    heads = Heads(num_heads, num_heads, head_dim)
    size = fields.optional_size("n_inner") or 4 * hidden_size
    activation = fields.activation("activation_function", default="gelu_new")
    scale = head_dim**-0.5 if fields.flag("scale_attn_weights", default=True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", default=False)
    norm = layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5))
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=hidden_size)
    b.embed("wte")
    b.embed_positions("wpe", length)
    for _ in range(fields.size("n_layer")):
        with b.layer() as layer:
            h = b.norm(b.stream, "attn_norm", "h.{layer}.ln_1", norm)
            spec = AttentionSpec(
                heads,
                heads.packed("h.{layer}.attn.c_attn", Transpose()),
                _conv1d("attn.c_proj", hidden_size),
                scale / (layer + 1) if by_layer else scale,
                qkv_bias=True,
                out_bias=True,
            )
            b.residual(attention(b, h, spec))
            h = b.norm(b.stream, "mlp_norm", "h.{layer}.ln_2", norm)
            up, down = _conv1d("mlp.c_fc", size), _conv1d("mlp.c_proj", hidden_size)
            b.residual(mlp(b, h, plain_mlp(up, down, activation)))
    b.final_norm("ln_f", norm)
    b.head("lm_head", tied=fields.flag("tie_word_embeddings", default=True))
    return b.build(architecture, length, _NAMES)


def _conv1d(name: str, size: int) -> Module:
    return Module(f"h.{{layer}}.{name}", size, (Transpose(),))
