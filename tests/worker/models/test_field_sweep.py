"""Each field of config.json changed in turn: the model follows its oracle, or is refused."""

from __future__ import annotations

from collections import defaultdict
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
from taco_worker.models.registry import find_recipe, supported_architectures

TOLERANCE = 1e-4
NUM_BLOCKS, BLOCK_SIZE = 40, 16
SEQUENCES = token_sequences((21, 40))
_NAMES = supported_architectures()
SUPPORTED = [v for v in VARIANTS.values() if v.architecture in _NAMES]
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
# Fields without a meaning for logits, and those whose own fields are swept.
NOT_SWEPT = {"architectures", "model_type", "bos_token_id", "eos_token_id", "pad_token_id"}
NOT_SWEPT |= {"text_config", "vision_config"}
# transformers does not make a checkpoint with other numbers of layers and of layer_types.
NOT_MADE = {name: {"num_hidden_layers"} for name in ("gpt_oss", "granite_moe_hybrid", "lfm2_moe")}


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
        if (name, value) in variant.fields:
            assert all(logits.isfinite().all() for logits in variant.reference(path)(SEQUENCES))
        return
    length = min(NUM_BLOCKS * BLOCK_SIZE, load_hf_config(path).plan.max_position_embeddings)
    expected = variant.reference(path, max_model_len=length)(SEQUENCES)
    assert all(logits.isfinite().all() for logits in expected)
    for serves in ("kernels", "torch"):
        runner = PagedRunner(load_step_model(path, serves), num_blocks=NUM_BLOCKS)
        actual = runner.step(dict(zip("ab", SEQUENCES, strict=True)))
        for logits, one in zip(actual.values(), expected, strict=True):
            torch.testing.assert_close(logits, one, atol=TOLERANCE, rtol=0)


def test_every_field_of_a_config_is_changed() -> None:
    """By recipe: a field changes in at least one of its variants."""
    fields: dict[str, set[str]] = defaultdict(set)
    changed: dict[str, set[str]] = defaultdict(set)
    for variant in SUPPORTED:
        recipe = find_recipe([variant.architecture])[1].__module__.rpartition(".")[2]
        fields[recipe] |= variant.config.keys() - NOT_SWEPT - NOT_MADE.get(recipe, set())
        changed[recipe] |= {name for name, _ in (*variant.fields, *variant.rejected)}
    missing = {recipe: sorted(names - changed[recipe]) for recipe, names in fields.items()}
    assert {recipe: names for recipe, names in missing.items() if names} == {}
