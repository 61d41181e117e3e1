"""ChatGLM 2 and 3, and GLM 4 as first published: GLM with other names of fields and tensors."""

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
from taco_worker.models.plan.mlp_block import MlpSpec
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.rope import scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary

_LAYER = "transformer.encoder.layers.{layer}"
_NAMES = TensorNames(ignored=(r"^transformer\.rotary_pos_emb\.inv_freq$",))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    for name, supported in (
        ("position_encoding_2d", False),  # the first ChatGLM
        ("add_bias_linear", False),
        ("apply_residual_connection_post_layernorm", False),
        ("original_rope", True),
        ("post_layer_norm", True),
        ("pre_seq_len", None),  # of P-tuning
        ("quantization_bit", 0),
        ("rmsnorm", True),
        ("tie_word_embeddings", False),
    ):
        fields.only(name, supported)
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    shares_kv = fields.flag("multi_query_attention", default=False)
    num_kv_heads = fields.size("multi_query_group_num", default=1) if shares_kv else num_heads
    heads = Heads(num_heads, num_kv_heads, fields.size("kv_channels", default=128))
    length = fields.size("seq_length")
    # ChatGLM 2 divides positions by it. Only a name tells its configs from ChatGLM 3's.
    is_3 = "chatglm3" in fields.text("_name_or_path", default="")
    if fields.get("padded_vocab_size") == 65_024 and not is_3:
        fields.only("rope_ratio", 1)
    theta = 10_000.0 * fields.positive("rope_ratio", default=1.0)
    # Dynamic scaling reads the length by the name of other architectures.
    rope_fields = {"max_position_embeddings": length, **fields.values}
    rotary = parse_rotary(rope_fields, default_theta=theta, default_partial=0.5)
    size = fields.size("ffn_hidden_size")
    up = [Module(f"{_LAYER}.mlp.dense_h_to_4h", 2 * size)]
    down = Module(f"{_LAYER}.mlp.dense_4h_to_h", hidden_size)
    spec = DecoderSpec(
        sizes=Sizes(
            fields.size("padded_vocab_size"),
            hidden_size,
            fields.size("num_layers"),
            scaled_max_position_embeddings(rotary, length),
        ),
        attention=AttentionSpec(
            heads,
            heads.packed(f"{_LAYER}.self_attention.query_key_value"),
            Module(f"{_LAYER}.self_attention.dense", hidden_size),
            heads.head_dim**-0.5,
            qkv_bias=fields.flag("add_qkv_bias", default=False),
        ),
        mlp=MlpSpec(size, "silu", up, down, is_gated=True),
        norm=rms(fields.epsilon("layernorm_epsilon", default=1e-5)),
        norms=LayerNorms(
            attn_in=f"{_LAYER}.input_layernorm", mlp_in=f"{_LAYER}.post_attention_layernorm"
        ),
        rotary=Rotary(settings={"rope": rotary}, style="interleaved"),
        head=Head(tied=False, module="transformer.output_layer"),
        embedding="transformer.embedding.word_embeddings",
        final_norm="transformer.encoder.final_layernorm",
        names=_NAMES,
    )
    return decoder(architecture, spec)
