"""The sizes of each layer of DeciLM and Nemotron-NAS, which `block_configs` lists."""

from __future__ import annotations

from collections.abc import Sequence

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import MLP
from taco_worker.models.plan.llama_block import llama_mlp
from taco_worker.models.plan.mlp_block import MlpSpec, gated_mlp

_OPTIONS = {
    "attention": {"n_heads_in_group", "no_op"},
    "ffn": {"ffn_mult", "gated", "hidden_act", "intermediate_size", "no_op"},
}
_MULTIPLE = 256  # of the sizes that ffn_mult gives


def layer_kv_heads(fields: ConfigFields) -> Sequence[int | None]:
    """The number of KV heads of each layer; None: it has no attention."""
    name, num_heads = "num_key_value_heads_per_layer", fields.size("num_attention_heads")
    given = fields.per_layer(name, fields.size("num_hidden_layers"))
    if given is not None:
        fields.only("block_configs", None)
        return [ConfigFields({name: count}).size(name) for count in given]
    blocks = _blocks(fields, "attention")
    groups = [None if block is None else block.size("n_heads_in_group") for block in blocks]
    for group in groups:
        if group is not None and num_heads % group:
            raise ValueError(f"n_heads_in_group {group} does not divide {num_heads} heads")
    return [None if group is None else num_heads // group for group in groups]


def layer_mlps(fields: ConfigFields) -> Sequence[MlpSpec | None]:
    """The MLP of each layer; None: it has none."""
    bias = fields.flag("mlp_bias", default=False)
    if fields.get("block_configs") is None:
        return [llama_mlp(fields, bias=bias)] * fields.size("num_hidden_layers")
    blocks = _blocks(fields, "ffn")
    return [None if block is None else _mlp(fields, block, bias) for block in blocks]


def _mlp(fields: ConfigFields, block: ConfigFields, bias: bool) -> MlpSpec:
    block.only("gated", True)
    hidden_size, size = fields.size("hidden_size"), block.optional_size("intermediate_size")
    if size is None:
        unrounded = int(2 * block.positive("ffn_mult") * hidden_size / 3)
        size = -(-unrounded // _MULTIPLE) * _MULTIPLE
    given = ConfigFields({**fields.values, **block.values})
    activation = given.activation("hidden_act", default="silu")
    return gated_mlp(MLP, size, hidden_size, activation, bias=bias)


def _blocks(fields: ConfigFields, name: str) -> Sequence[ConfigFields | None]:
    """The options of each layer's `name`; None: the layer has no such block."""
    given = fields.per_layer("block_configs", fields.size("num_hidden_layers"))
    if given is None:
        raise KeyError("block_configs")
    blocks = [ConfigFields(block[name]) for block in given]
    for block in blocks:
        for option in sorted(block.values.keys() - _OPTIONS[name]):
            block.only(option, None, False)
    return [None if block.flag("no_op", default=False) else block for block in blocks]
