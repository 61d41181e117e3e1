"""The layers of OLMo Hybrid that have linear attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module
from taco_worker.models.plan.decoder_block import Mixer
from taco_worker.models.plan.delta_block import mixers, read_delta_heads, separate_modules

_PREFIX = "model.layers.{layer}.linear_attn"
_PERIOD = 4
_EPS = 1e-5  # the published code gives this norm no epsilon of the config


def hybrid_mixers(fields: ConfigFields) -> Sequence[Mixer | None]:
    """The block of each layer; None: the layer has full attention."""
    fields.only("hidden_act", "silu")  # also of the convolution
    hidden_size = fields.size("hidden_size")
    heads = read_delta_heads(_with_sizes(fields))
    spec = separate_modules(
        _PREFIX,
        heads,
        hidden_size,
        gate=Module(f"{_PREFIX}.g_proj", heads.values_size),
        decay=Module(f"{_PREFIX}.a_proj", heads.num_heads),
        width=fields.size("linear_conv_kernel_dim", default=4),
        eps=_EPS,
    )
    if fields.flag("linear_allow_neg_eigval", default=True):
        spec = replace(spec, beta_scale=2.0)
    found = mixers(fields, spec, _PERIOD)
    if fields.get("layer_types") is None and None not in found:
        return [*found[:-1], None]
    return found


def _with_sizes(fields: ConfigFields) -> ConfigFields:
    """Sizes that a config leaves out follow from others."""
    num_heads = fields.size("num_attention_heads")
    key_heads = fields.size("linear_num_key_heads", default=num_heads)
    default = int(0.75 * fields.size("hidden_size") / key_heads)
    key_dim = fields.size("linear_key_head_dim", default=default)
    sizes = {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": fields.size("linear_num_value_heads", default=num_heads),
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": fields.size("linear_value_head_dim", default=2 * key_dim),
    }
    return ConfigFields({**fields.values, **sizes})
