"""Text parts of transformers' whole models for text and images: names, ties and defaults."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from support.architectures.native import random_model
from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.models import load_step_model
from support.paged import GivenTokens, PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.config_reading import read_hf_config
from taco_worker.models.text_defaults import MODEL_TYPES, text_defaults

_TOWER: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 16, "image_size": 28}
_TOWER |= {"patch_size": 14, "num_hidden_layers": 1, "num_attention_heads": 2}
_CLIP = {"model_type": "clip_vision_model", **_TOWER, "projection_dim": 8}
_DEEP: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 16, "depth": 1, "num_heads": 2}
_QWEN = {**_DEEP, "out_hidden_size": 72, "deepstack_visual_indexes": [0]}
_MLLAMA: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 16, "image_size": 28}
_MLLAMA |= {"patch_size": 14, "num_hidden_layers": 1, "num_global_layers": 1}
_MLLAMA |= {"attention_heads": 2, "vision_output_dim": 48, "intermediate_layers_indices": [0]}
# The vision towers of whole models, by variants with their text parts.
TOWERS: dict[str, dict[str, Any]] = {
    "llava-1.5-like": _CLIP,
    "llava-1.6-mistral-like": _CLIP,
    "idefics3-like": _TOWER,
    "smolvlm-like": _TOWER,
    "internvl3-hf-like": {**_TOWER, "image_size": [28, 28], "patch_size": [14, 14]},
    "aya-vision-like": {"model_type": "siglip_vision_model", **_TOWER},
    "qwen3-vl-like": _QWEN,
    "qwen3-vl-moe-like": _QWEN,
    "qwen3.5-like": {**_DEEP, "out_hidden_size": 72},
    "qwen3.5-moe-like": {**_DEEP, "out_hidden_size": 72},
    "glm-4.1v-like": {**_DEEP, "out_hidden_size": 96},
    "glm-4.5v-like": {**_DEEP, "out_hidden_size": 96},
    "llama-3.2-vision-like": _MLLAMA,
}


# transformers 5 does not multiply the logits of Aya Vision by this; Cohere's model does.
CHANGED: dict[str, dict[str, Any]] = {"aya-vision-like": {"logit_scale": 1.0}}


def _save(path: Path, name: str, original: bool, **text: Any) -> Any:
    """The whole model of a variant, saved in `path` by its class."""
    config = VARIANTS[name].config
    text = {**config["text_config"], **text}
    fields = {**config, "text_config": text, "vision_config": TOWERS[name]}
    model = random_model(config["architectures"][0], fields, seed=0)
    model.save_pretrained(path, save_original_format=original)
    return model


@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("name", TOWERS)
def test_the_text_part_of_a_whole_model_has_its_logits(
    tmp_path: Path, name: str, original: bool
) -> None:
    model = _save(tmp_path, name, original, **CHANGED.get(name, {}))
    ids = token_sequences((40,))[0]
    with torch.no_grad():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
    for serves in ("kernels", "torch"):
        actual = PagedRunner(load_step_model(tmp_path, serves)).step({"a": ids})["a"]
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("name", ["glm-4.1v-like", "glm-4.5v-like"])
def test_positions_of_glm_on_three_axes(tmp_path: Path, name: str, serves: str) -> None:
    """Three words and two rows of three patches."""
    model = _save(tmp_path, name, True)
    rows = [0, 1, 2, 3, 3, 3, 3, 3, 3], [0, 1, 2, 3, 3, 3, 4, 4, 4], [0, 1, 2, 3, 4, 5, 3, 4, 5]
    positions = torch.tensor(rows)
    ids = token_sequences((9,))[0]
    embeddings = model.get_input_embeddings()(torch.tensor(ids)).detach()
    with torch.no_grad():
        text = model.model.language_model(
            inputs_embeds=embeddings[None], position_ids=positions[:, None], use_cache=False
        )
        expected = model.lm_head(text.last_hidden_state)[0]
    given = GivenTokens(positions, embeddings, torch.ones(9, dtype=torch.bool))
    runner = PagedRunner(load_step_model(tmp_path, serves))
    actual = runner.step({"a": ids}, {"a": given})["a"]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("name", ["idefics3-like", "qwen3-vl-moe-like"])
def test_files_decide_where_the_configs_contradict_each_other_about_the_head(
    tmp_path: Path, name: str, is_tied: bool
) -> None:
    """transformers 4 reads the text model's field, transformers 5 that of the whole model."""
    model = _save(tmp_path, name, True, tie_word_embeddings=False)
    ids = token_sequences((20,))[0]
    if is_tied:
        model.lm_head.weight = model.get_input_embeddings().weight
        model.config.tie_word_embeddings = True
        model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
    config = json.loads((tmp_path / "config.json").read_text())
    config["tie_word_embeddings"] = is_tied
    config["text_config"]["tie_word_embeddings"] = not is_tied
    (tmp_path / "config.json").write_text(json.dumps(config))
    actual = PagedRunner(load_step_model(tmp_path, "torch")).step({"a": ids})["a"]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_sizes_that_a_nested_config_leaves_out_are_those_of_its_class(model_type: str) -> None:
    fields = dataclasses.fields(transformers.CONFIG_MAPPING[model_type])
    defaults = {field.name: field.default for field in fields}
    sizes = text_defaults(model_type)
    assert sizes == {name: defaults[name] for name in sizes}
    assert set(sizes) >= {"vocab_size", "hidden_size", "max_position_embeddings"}
    assert ("num_key_value_heads" in sizes) == (defaults["num_key_value_heads"] is not None)


def test_the_config_of_llava_1_5_lists_only_what_differs_from_llama(tmp_path: Path) -> None:
    text = {"max_position_embeddings": 4096, "model_type": "llama", "vocab_size": 32064}
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    fields = read_hf_config(tmp_path / "config.json")
    assert fields["architectures"] == ["LlamaForCausalLM", "LlavaForConditionalGeneration"]
    assert (fields["hidden_size"], fields["num_hidden_layers"]) == (4096, 32)
    assert (fields["vocab_size"], fields["max_position_embeddings"]) == (32064, 4096)


@pytest.mark.parametrize("given", [{}, {"use_bidirectional_attention": None}])
def test_paligemma_attends_to_later_tokens_of_a_prompt_and_is_rejected(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    text = {**VARIANTS["gemma-2b-like"].config, **given}
    config = {"architectures": ["PaliGemmaForConditionalGeneration"], "model_type": "paligemma"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": text}))
    with pytest.raises(ValueError, match="use_bidirectional_attention True is not supported"):
        load_hf_config(tmp_path)
