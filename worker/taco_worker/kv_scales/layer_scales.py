"""The scales of a model's layers, and of the KV entries that the layers write."""

from __future__ import annotations

from collections.abc import Mapping

from taco_kernels.kv_entry import EntryScales
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.attend import WriteKV

_LAYERS_IN_ERROR = 5
# Of a scale and its reciprocal in float32.
_LEAST, _GREATEST = 2.0**-126, 2.0**126


def check_scale(scale: float, name: str) -> float:
    """Returns the scale; raises ValueError unless float32 holds it and its reciprocal."""
    if not _LEAST <= scale <= _GREATEST:
        raise ValueError(f"{name} is {scale:g}, which is no finite positive scale")
    return scale


def written_entries(plan: ModelPlan) -> dict[int, int]:
    """The KV entry that each layer writes; layers that use another's are missing."""
    return {
        layer: op.entry
        for layer, ops in enumerate(plan.layers)
        for op in ops
        if isinstance(op, WriteKV)
    }


def check_layers(layers: Mapping[int, object], plan: ModelPlan, where: str) -> None:
    """Raises ValueError unless there is something for each layer that writes KV, and no others.

    Args:
        where: names the source in the error.
    """
    if missing := [layer for layer in written_entries(plan) if layer not in layers]:
        shown = ", ".join(map(str, missing[:_LAYERS_IN_ERROR]))
        more = f" and {len(missing) - _LAYERS_IN_ERROR} more" * (len(missing) > _LAYERS_IN_ERROR)
        noun = "layer" if len(missing) == 1 else "layers"
        raise ValueError(f"{where} lacks the scales of {noun} {shown}{more}")
    if unknown := [layer for layer in sorted(layers) if not 0 <= layer < plan.num_layers]:
        raise ValueError(
            f"{where} has scales of layer {unknown[0]}, and the model has {plan.num_layers} layers"
        )


def entry_scales(
    scales: Mapping[int, EntryScales], plan: ModelPlan, where: str
) -> tuple[EntryScales, ...]:
    """The scales of each KV entry, from those of the layers that write them.

    Raises:
        ValueError: as `check_layers`.
    """
    check_layers(scales, plan, where)
    by_entry: dict[int, EntryScales] = {}
    for layer, index in written_entries(plan).items():
        of_layer = scales[layer]
        is_latent = plan.kv_entries[index].latent
        by_entry[index] = EntryScales(of_layer.key, of_layer.key if is_latent else of_layer.value)
    return tuple(by_entry[index] for index in range(len(plan.kv_entries)))
