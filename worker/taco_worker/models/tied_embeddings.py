"""Whether the token embeddings are the LM head, where the files of a checkpoint tell."""

from __future__ import annotations

import re
from dataclasses import replace

from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files, stored_tensors

# Names of LM heads; InternLM 2's is `output`.
_LM_HEAD = re.compile(r"(^|\.)lm_head\.|^(language_model\.)?output\.")


def has_tied_head(checkpoint: CheckpointFiles) -> bool | None:
    """Whether a checkpoint stores no LM head, for a config that does not say whether it is tied.

    None: no weight files can be read.
    """
    if checkpoint.load_format in ("dummy", "sharded_state"):
        return None
    try:
        files = find_weight_files(checkpoint)
        return not any(_LM_HEAD.search(name) for file in files for name in stored_tensors(file))
    except ValueError:
        return None


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
