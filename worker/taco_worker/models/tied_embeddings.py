"""Tied token embeddings that a checkpoint stores under the name of the LM head."""

from __future__ import annotations

import re
from dataclasses import replace

from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files, stored_tensors


def with_stored_embeddings(plan: ModelPlan, checkpoint: CheckpointFiles) -> ModelPlan:
    """The plan, whose embeddings are read from the LM head if the files have these alone.

    `safetensors.torch.save_model`, and accelerate with it, stores one of two equal tensors: the one
    whose name sorts first. Files that cannot be read are left to loading, which says why.
    """
    if plan.tied_module is None or checkpoint.load_format not in ("auto", "safetensors"):
        return plan
    try:
        files = [file for file in find_weight_files(checkpoint) if file.suffix == ".safetensors"]
        stored = [name for file in files for name in stored_tensors(file)]
    except ValueError:
        return plan
    weight = f"{plan.tied_module}.weight"
    ignored = tuple(one for one in plan.names.ignored if not re.search(one, weight))
    names = replace(plan.names, ignored=ignored)
    found = {names.canonical(name) for name in stored}
    table = plan.parameters[plan.embedding_table]
    if weight not in found or any(one.name in found for layout in table.layouts for one in layout):
        return plan
    layouts = tuple(
        tuple(replace(source, name=weight) for source in layout) for layout in table.layouts
    )
    parameters = {**plan.parameters, table.name: replace(table, layouts=layouts)}
    return replace(plan, parameters=parameters, names=names)
