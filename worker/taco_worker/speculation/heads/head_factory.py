"""Creates the Medusa, EAGLE or EAGLE 3 drafter for a draft-head checkpoint."""

from __future__ import annotations

from taco_proto.errors import ConfigurationError
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.heads.eagle import EagleDrafter
from taco_worker.speculation.heads.eagle_models import load_eagle
from taco_worker.speculation.heads.head_checkpoint import (
    HeadCheckpoint,
    find_head_checkpoint,
)
from taco_worker.speculation.heads.medusa import MedusaDrafter, load_medusa
from taco_worker.speculation.heads.medusa_recipe import is_medusa


def make_heads(
    model: str,
    target: StepModel,
    *,
    max_num_seqs: int,
    max_model_len: int,
    num_draft_tokens: int | None = None,
    download_dir: str | None = None,
) -> Drafter:
    """Create the drafter of a checkpoint: Medusa, EAGLE or EAGLE 3, according to its config.

    The target stores the hidden states that the drafter needs from then on.

    Args:
        model: a directory or a hub id.
        num_draft_tokens: the maximum number of nodes of a tree; None: the drafter's default.
        download_dir: directory for downloaded heads; None: the Hugging Face cache.

    Raises:
        ConfigurationError: the checkpoint does not exist, is of an unknown kind or damaged, or its
            shapes do not fit the target.
    """
    model_dir = find_head_checkpoint(model, download_dir)
    checkpoint = HeadCheckpoint.read(model_dir)
    if is_medusa(checkpoint.fields):
        return MedusaDrafter(
            load_medusa(checkpoint, target),
            target,
            max_num_seqs=max_num_seqs,
            num_draft_tokens=num_draft_tokens,
        )
    if "fc.weight" not in checkpoint.tensor_names:
        raise ConfigurationError(
            f"{model} holds no known draft heads (Medusa, EAGLE or EAGLE 3): its config names "
            f"{checkpoint.fields.get('architectures')!r}, and it lacks fc.weight"
        )
    eagle = load_eagle(checkpoint, target)
    target.keep_hidden(eagle.hidden_layers)
    return EagleDrafter(
        eagle,
        target,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        num_draft_tokens=num_draft_tokens,
    )
