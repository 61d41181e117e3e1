"""Blocks with Llama's tensor names, read from the fields of a config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, HeadNorm, Heads
from taco_worker.models.plan.builder import Module, NormSpec, rms
from taco_worker.models.plan.decoder_block import (
    ATTENTION,
    MLP,
    DecoderSpec,
    Head,
    Rotary,
    Sizes,
)
from taco_worker.models.plan.mlp_block import MlpSpec, gated_mlp, plain_mlp
from taco_worker.models.plan.ops.activation import ActivationKind
from taco_worker.models.plan.ops.rope import RopeStyle
from taco_worker.models.rope import RotaryConfig, scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary


def llama_spec(
    fields: ConfigFields,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    eps: float = 1e-6,
    default_head_dim: int | None = None,
    default_theta: float = 10_000.0,
    default_partial: float | None = None,
    tied: bool = False,
    rotary: Rotary | None = None,
    mlp: MlpSpec | None = None,
    **changes: Any,
) -> DecoderSpec:
    """Llama's decoder; arguments without an explanation are what configs without a field mean.

    Args:
        default_partial: None: the model always rotates whole heads.
        rotary: by default the same in all layers. With it, the config's length is the scaled one.
        changes: attributes of the spec that differ from Llama's.
    """
    length = fields.size("max_position_embeddings")
    if rotary is None:
        settings = parse_rotary(
            fields.values, default_theta=default_theta, default_partial=default_partial or 1.0
        )
        length = scaled_max_position_embeddings(settings, length)
        rotary = Rotary(settings={"rope": settings})
    for settings in rotary.settings.values() if default_partial is None else ():
        settings.check_whole_heads()
    heads = read_heads(fields, default_head_dim=default_head_dim)
    spec = DecoderSpec(
        sizes=read_sizes(fields, length),
        attention=llama_attention(fields, heads, qkv_bias=qkv_bias, out_bias=out_bias),
        mlp=mlp or llama_mlp(fields),
        norm=rms(fields.epsilon("rms_norm_eps", default=eps)),
        head=Head(tied=fields.flag("tie_word_embeddings", default=tied)),
        rotary=rotary,
    )
    return replace(spec, **changes)


def read_sizes(fields: ConfigFields, max_position_embeddings: int) -> Sizes:
    return Sizes(
        fields.size("vocab_size"),
        fields.size("hidden_size"),
        fields.size("num_hidden_layers"),
        max_position_embeddings,
    )


def read_heads(fields: ConfigFields, *, default_head_dim: int | None = None) -> Heads:
    num_heads = fields.size("num_attention_heads")
    default = default_head_dim or fields.size("hidden_size") // num_heads
    head_dim = fields.optional_size("head_dim") or default
    if not head_dim:
        raise ValueError(f"num_attention_heads {num_heads} is more than hidden_size")
    return Heads(num_heads, fields.size("num_key_value_heads", default=num_heads), head_dim)


def llama_attention(
    fields: ConfigFields,
    heads: Heads,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    out: str = "o_proj",
) -> AttentionSpec:
    return AttentionSpec(
        heads,
        heads.separate(*(f"{ATTENTION}.{name}_proj" for name in "qkv")),
        Module(f"{ATTENTION}.{out}", fields.size("hidden_size")),
        heads.head_dim**-0.5,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )


def llama_mlp(
    fields: ConfigFields, activation: ActivationKind | None = None, *, bias: bool = False
) -> MlpSpec:
    """`activation`: by default the config's."""
    activation = activation or fields.activation("hidden_act", default="silu")
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    return gated_mlp(MLP, size, hidden_size, activation, bias=bias)


def fused_mlp(fields: ConfigFields) -> MlpSpec:
    """One module holds gate, then up."""
    spec = llama_mlp(fields)
    return replace(spec, up=[Module(f"{MLP}.gate_up_proj", 2 * spec.size)])


def two_layer_mlp(
    fields: ConfigFields, up: str, down: str, activation: ActivationKind, *, bias: bool
) -> MlpSpec:
    """An MLP without a gate, of modules inside `mlp`."""
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    modules = Module(f"{MLP}.{up}", size), Module(f"{MLP}.{down}", hidden_size)
    return plain_mlp(*modules, activation, bias=bias)


def head_norms(spec: NormSpec, query: str = "q_norm", key: str = "k_norm") -> HeadNorm:
    """Norms of each query and each key head, with the same weights for all heads."""
    return HeadNorm(f"{ATTENTION}.{query}", f"{ATTENTION}.{key}", spec)


def rotary_by_type(
    settings: Mapping[str, RotaryConfig | None], kinds: Sequence[str], style: RopeStyle = "half"
) -> Rotary:
    """Rotary positions of each layer by its type; None: layers of the type have none."""
    given = {kind: one for kind, one in settings.items() if one is not None}
    return Rotary(
        settings=given, tables=[kind if kind in given else None for kind in kinds], style=style
    )
