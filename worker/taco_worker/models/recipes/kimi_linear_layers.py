"""The layers of Kimi Linear that have delta attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module
from taco_worker.models.plan.decoder_block import ATTENTION, Mixer
from taco_worker.models.plan.delta_block import DeltaHeads, LowRank, mixers, separate_modules


def delta_layers(fields: ConfigFields) -> Sequence[Mixer | None]:
    """The block of each layer; None: the layer has full attention."""
    fields.only("hidden_act", "silu")  # also of the convolution
    given = _linear_settings(fields)
    count, dim = given.size("num_heads", default=32), given.size("head_dim", default=128)
    heads = DeltaHeads(count, count, dim, dim)

    def low_rank(name: str) -> LowRank:
        modules = (f"{ATTENTION}.{name}_a_proj", dim), (f"{ATTENTION}.{name}_b_proj", count * dim)
        return LowRank(*(Module(*one) for one in modules))

    spec = separate_modules(
        ATTENTION,
        heads,
        fields.size("hidden_size"),
        gate=low_rank("g"),
        decay=low_rank("f"),
        width=given.size("short_conv_kernel_size", default=4),
        eps=fields.epsilon("rms_norm_eps", default=1e-5),
    )
    spec = replace(spec, gate_kind="sigmoid", rates_shape=(1, 1, count, 1))
    kinds = fields.get("layer_types", default=_listed_types(fields, given))
    return mixers(ConfigFields({**fields.values, "layer_types": kinds}), spec)


def _linear_settings(fields: ConfigFields) -> ConfigFields:
    """linear_attn_config, or the same under other names."""
    given = fields.get("linear_attn_config", default={})
    if not isinstance(given, dict):
        raise ValueError(f"linear_attn_config must be an object, not {given!r:.100}")
    names = {
        "num_heads": "linear_num_heads",
        "head_dim": "linear_head_dim",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }
    return ConfigFields({**{ours: fields.get(name) for ours, name in names.items()}, **given})


def _listed_types(fields: ConfigFields, given: ConfigFields) -> list[str]:
    """The type of each layer, whose lists in linear_attn_config count layers from 1."""
    num_layers = fields.size("num_hidden_layers")
    full, linear = given.get("full_attn_layers"), given.get("kda_layers")
    if full is None or linear is None:
        full = range(5, num_layers + 1, 4)
    elif sorted([*full, *linear]) != [*range(1, num_layers + 1)]:
        raise ValueError(
            f"full_attn_layers and kda_layers must have the layers 1 to {num_layers}, not "
            f"{full!r:.100} and {linear!r:.100}"
        )
    layers = range(1, num_layers + 1)
    return ["full_attention" if layer in full else "linear_attention" for layer in layers]
