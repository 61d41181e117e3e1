"""The plans of a draft-head checkpoint without its target, for `taco_llm plan`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taco_proto.errors import ConfigurationError
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.speculation.heads.eagle_recipe import (
    eagle3_plans,
    eagle_plans,
    is_eagle3,
    named_target_layers,
)
from taco_worker.speculation.heads.head_checkpoint import HeadCheckpoint
from taco_worker.speculation.heads.medusa_recipe import PREFIX, is_medusa, medusa_plans

_NUM_TARGET_LAYERS = 3  # of EAGLE 3, unless the config names them


def head_plans(model_dir: Path) -> Sequence[ModelPlan]:
    """The plans of a directory with Medusa, EAGLE or EAGLE 3 heads, in the order that they run.

    Raises:
        ConfigurationError: a file is missing or damaged, or the config is invalid.
    """
    checkpoint = HeadCheckpoint.read(model_dir)
    fields, names = checkpoint.fields, checkpoint.tensor_names
    try:
        if is_medusa(fields):
            hidden_size, vocab_size = _target_sizes(checkpoint)
            return medusa_plans(fields, names, hidden_size=hidden_size, vocab_size=vocab_size)
        if is_eagle3(fields):
            num_layers = len(named_target_layers(fields) or range(_NUM_TARGET_LAYERS))
            return eagle3_plans(fields, names, num_target_layers=num_layers).all
        return eagle_plans(fields, names).all
    except KeyError as error:
        raise ConfigurationError(f"the heads' config.json has no {error}") from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ConfigurationError(f"the heads' config.json is invalid: {error}") from None


def _target_sizes(checkpoint: HeadCheckpoint) -> tuple[int, int]:
    """The target's hidden_size and vocab_size, which a Medusa config does not give.

    The vocab_size is 0 for heads that use the target's LM head.

    Raises:
        ValueError: the checkpoint has no Medusa head.
    """
    shapes = {name.removeprefix(PREFIX): shape for name, shape in checkpoint.shapes().items()}
    last = checkpoint.fields.get("medusa_num_layers", default=1)
    for name in (f"0.{last}.weight", "0.0.linear.weight"):
        if len(shape := shapes.get(name, ())) == 2:
            return shape[1], shape[0] if name.endswith(f"{last}.weight") else 0
    raise ValueError("the weights have no tensor 0.0.linear.weight")
