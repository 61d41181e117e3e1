"""Each field of config.json changed in turn: the model follows its oracle, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.architectures.variant import Variant, token_sequences
from support.architectures.variants import VARIANTS
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.registry import supported_architectures

TOLERANCE = 1e-4
NUM_BLOCKS, BLOCK_SIZE = 40, 16
SUPPORTED = [v for v in VARIANTS.values() if v.architecture in supported_architectures()]
# Fields whose values here no published model has.
REFUSED = {
    ("GPT2LMHeadModel", "add_cross_attention"),
    ("Gemma3ForCausalLM", "attn_logit_softcapping"),  # transformers ignores it
    ("DeepseekV2ForCausalLM", "n_group"),  # 3 experts out of groups that hold 2
    # An odd number of rotated columns.
    ("Glm4ForCausalLM", "head_dim"),
    ("Glm4MoeForCausalLM", "head_dim"),
    ("GlmForCausalLM", "head_dim"),
    ("NemotronForCausalLM", "head_dim"),
}


def _cases() -> Iterator[Any]:
    for variant in SUPPORTED:
        for index, (name, value) in enumerate((*variant.fields, *variant.rejected)):
            is_refused = index >= len(variant.fields) or (variant.architecture, name) in REFUSED
            case = f"{variant.name}-{name}-{index}"
            yield pytest.param(variant, name, value, is_refused, id=case)


@pytest.mark.parametrize(("variant", "name", "value", "is_refused"), list(_cases()))
def test_changed_field_follows_the_oracle_or_is_refused(
    variant: Variant, name: str, value: Any, is_refused: bool, tmp_path: Path
) -> None:
    path = variant.make(tmp_path / "model", **{name: value})
    if is_refused:
        with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
            load_hf_config(path)
        return
    length = min(NUM_BLOCKS * BLOCK_SIZE, load_hf_config(path).plan.max_position_embeddings)
    sequences = token_sequences((21, 40))
    expected = variant.reference(path, max_model_len=length)(sequences)
    for serves in ("kernels", "torch"):
        runner = PagedRunner(load_step_model(path, serves), num_blocks=NUM_BLOCKS)
        actual = runner.step(dict(zip("ab", sequences, strict=True)))
        for logits, one in zip(actual.values(), expected, strict=True):
            torch.testing.assert_close(logits, one, atol=TOLERANCE, rtol=0)
