"""The plans of EAGLE and EAGLE 3: features of the target, one decoder layer, logits.

Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", and 2025,
"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from taco_kernels.kv_entry import KVEntry
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module, PlanBuilder, rms
from taco_worker.models.plan.llama_block import read_heads
from taco_worker.models.plan.mlp_block import gated_mlp, mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.ops.input import Input
from taco_worker.models.plan.ops.linear import HeadCopy
from taco_worker.models.plan.ops.rope import Rope
from taco_worker.models.plan.slices import Slice
from taco_worker.models.rope_parsing import parse_rotary

# Copies of the target's tensors, buffers of old checkpoints, and ids that are no weights.
_NAMES = TensorNames(ignored=(r"^embed_tokens\.", r"\.rotary_emb\.inv_freq$", "^d2t$", "^t2d$"))
_EAGLE_NAMES = replace(_NAMES, ignored=(*_NAMES.ignored, r"^lm_head\."))


@dataclass(frozen=True, slots=True)
class EaglePlans:
    """A head as plans that run one after another.

    Attributes:
        features: hidden states of the target to features; None: they are features.
        layer: a token's embedding beside the feature before it to the next feature.
        logits: features to logits over the head's own vocabulary; None: the target's.
    """

    features: ModelPlan | None
    layer: ModelPlan
    logits: ModelPlan | None

    @property
    def all(self) -> tuple[ModelPlan, ...]:
        return tuple(p for p in (self.features, self.layer, self.logits) if p is not None)


def eagle_plans(fields: ConfigFields, tensor_names: Collection[str]) -> EaglePlans:
    """`tensor_names`: of the checkpoint; they tell which products have a bias.

    Raises:
        KeyError, ValueError: as `ConfigFields` does.
    """
    size = fields.size("hidden_size")
    b = PlanBuilder(hidden_size=size)
    pair = b.buffer("pair", 2 * size)
    b.add(Input(pair))
    has_bias = "fc.bias" in tensor_names
    b.linear(pair, "fc", [Module("fc", size)], bias=has_bias, out=b.stream)
    _layer(b, b.stream, fields, "layers.0", tensor_names)
    return EaglePlans(None, _built(b, fields, "Eagle", _EAGLE_NAMES), None)


def eagle3_plans(
    fields: ConfigFields, tensor_names: Collection[str], *, num_target_layers: int
) -> EaglePlans:
    """As `eagle_plans`.

    Args:
        num_target_layers: layers of the target whose outputs, side by side, make a feature.
    """
    size, norm = fields.size("hidden_size"), rms(fields.epsilon("rms_norm_eps", default=1e-6))
    features = PlanBuilder(hidden_size=size)
    outputs = features.buffer("outputs", num_target_layers * size)
    features.add(Input(outputs))
    features.linear(outputs, "fc", [Module("fc", size)], out=features.stream)

    b = PlanBuilder(hidden_size=size)
    pair, normed = b.buffer("pair", 2 * size), b.buffer("normed_pair", 2 * size)
    b.add(Input(pair))
    embedded, feature = pair.columns(0, size), pair.columns(size, size)
    b.add(HeadCopy(feature, b.stream, 1, size, size, size))
    halves = normed.columns(0, size), normed.columns(size, size)
    b.norm(embedded, "token_norm", "midlayer.input_layernorm", norm, out=halves[0])
    b.norm(feature, "feature_norm", "midlayer.hidden_norm", norm, out=halves[1])
    _layer(b, normed, fields, "midlayer", tensor_names)

    logits = PlanBuilder(hidden_size=size, vocab_size=draft_vocab_size(fields))
    logits.add(Input(logits.stream))
    logits.final_norm("norm", norm)
    logits.head("lm_head")
    return EaglePlans(
        _built(features, fields, "Eagle3Features"),
        _built(b, fields, "Eagle3"),
        _built(logits, fields, "Eagle3Logits"),
    )


def is_eagle3(fields: ConfigFields) -> bool:
    names = " ".join(fields.get("architectures") or []).lower()
    return "draft_vocab_size" in fields.values or "eagle3" in names


def named_target_layers(fields: ConfigFields) -> Sequence[int] | None:
    """The layers whose outputs make a feature, as SGLang reads `eagle_config`; None: not named."""
    layers = (fields.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return layers or None


def draft_vocab_size(fields: ConfigFields) -> int:
    return fields.size("draft_vocab_size", default=fields.size("vocab_size"))


def _layer(
    b: PlanBuilder, x: Slice, fields: ConfigFields, prefix: str, tensor_names: Collection[str]
) -> None:
    """Llama's layer without the norm before its attention, in which the versions differ."""
    if (activation := fields.activation("hidden_act", default="silu")) != "silu":
        raise ValueError(f"heads with {activation!r} are not supported, only silu")

    def has_bias(*modules: str) -> bool:
        return any(f"{prefix}.{module}.bias" in tensor_names for module in modules)

    heads, size = read_heads(fields), b.stream.size
    query, key, value = heads.separate(*(f"{prefix}.self_attn.{name}_proj" for name in "qkv"))
    mlp_spec = replace(
        gated_mlp(f"{prefix}.mlp", fields.size("intermediate_size"), size),
        up_bias=has_bias("mlp.gate_proj", "mlp.up_proj"),
        down_bias=has_bias("mlp.down_proj"),
    )
    norm = rms(fields.epsilon("rms_norm_eps", default=1e-6))
    with b.layer():
        table = b.rope_table("rope", parse_rotary(fields.values), heads.head_dim)
        # Keys and values first: the rest of the layer may run for the output rows alone.
        kv_bias = has_bias("self_attn.k_proj", "self_attn.v_proj")
        kv = b.buffer("kv", 2 * heads.kv_size)
        b.linear(x, "attn.kv_proj", [key, value], bias=kv_bias, out=kv)
        keys, values = kv.columns(0, heads.kv_size), kv.columns(heads.kv_size, heads.kv_size)
        b.add(Rope(keys, heads.head_dim, heads.head_dim, table))
        entry = b.write_kv(
            KVEntry(heads.num_kv_heads, heads.head_dim, heads.head_dim), keys, values
        )
        queries, out = b.buffer("query", heads.query_size), b.buffer("attended", heads.query_size)
        b.linear(x, "attn.q_proj", [query], bias=has_bias("self_attn.q_proj"), out=queries)
        b.add(Rope(queries, heads.head_dim, heads.head_dim, table))
        b.add(Attend(queries, out, entry, heads.num_heads, heads.head_dim**-0.5))
        projection = [Module(f"{prefix}.self_attn.o_proj", size)]
        out_bias = has_bias("self_attn.o_proj")
        b.residual(
            b.linear(out, "attn.out_proj", projection, bias=out_bias, shard_unit=heads.head_dim)
        )
        normed = b.norm(b.stream, "mlp_norm", f"{prefix}.post_attention_layernorm", norm)
        b.residual(mlp(b, normed, mlp_spec))


def _built(
    b: PlanBuilder, fields: ConfigFields, architecture: str, names: TensorNames = _NAMES
) -> ModelPlan:
    return b.build(architecture, fields.size("max_position_embeddings", default=2048), names)
