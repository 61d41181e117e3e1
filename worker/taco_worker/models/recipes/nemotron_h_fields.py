"""Fields of Nemotron-H's configs: the kinds of blocks, and options that no published model has."""

from __future__ import annotations

from collections.abc import Sequence

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.mamba_block import read_step_limits

# Letters of hybrid_override_pattern, and the names of the same blocks in lists.
_KINDS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
}


def block_kinds(fields: ConfigFields) -> Sequence[str]:
    """The block of each layer: M (Mamba), * (attention) or - (MLP).

    Raises:
        ValueError: there is no list, it has another block, or it has another length than layers.
    """
    name = next(
        (one for one in ("layers_block_type", "layer_types") if fields.get(one) is not None),
        "hybrid_override_pattern",
    )
    given = fields.get(name)
    if not isinstance(given, list | str) or not given:
        raise ValueError(f"{name} must name the block of each layer, not {given!r:.100}")
    kinds = [_KINDS.get(one, one) if isinstance(one, str) else one for one in given]
    for kind in kinds:
        if kind in ("E", "moe"):
            raise ValueError(f"{name} has mixtures of experts, which are not supported")
        if kind not in ("M", "*", "-"):
            raise ValueError(f"{name} has the unknown block {kind!r:.100}")
    if fields.size("num_hidden_layers", default=len(kinds)) != len(kinds):
        raise ValueError(f"{name} has {len(kinds)} blocks, and num_hidden_layers differs")
    return kinds


def check_ignored(fields: ConfigFields) -> None:
    """Reject values of fields that the published code ignores, or reads otherwise.

    Raises:
        ValueError: a field has such a value.
    """
    fields.only("attention_bias", False)
    fields.only("mamba_proj_bias", False)
    fields.only("mamba_hidden_act", "silu")
    fields.only("sliding_window", None)
    fields.only("tie_word_embeddings", False)
    if read_step_limits(fields) != (0.0, float("inf")):
        raise ValueError("time_step_limit of Nemotron-H must be 0 and infinity")
