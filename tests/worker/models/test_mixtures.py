"""Mixtures of experts: bits, low precision, equal scores, and bad configs and tensors."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.architectures.mixture import VARIANTS
from support.architectures.variant import Variant, token_sequences
from support.mixed_batches import assert_bits_are_a_sequences_own, three_sequences
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.models.plan.parameters import fills
from taco_worker.models.registry import supported_architectures

_NAMES = supported_architectures()
MIXTURES = {v.name: v for v in VARIANTS if v.architecture in _NAMES}


@pytest.fixture(scope="module", params=list(MIXTURES))
def variant(request: pytest.FixtureRequest) -> Variant:
    return MIXTURES[request.param]


@pytest.fixture(scope="module")
def path(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return variant.make(tmp_path_factory.mktemp("model") / variant.name)


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("float32", None), ("bfloat16", None), ("bfloat16", "int8")]
)
def test_bits_do_not_depend_on_neighbours_and_chunks(
    variant: Variant, path: Path, dtype: str, quantization: str | None
) -> None:
    assert_bits_are_a_sequences_own(path, dtype, quantization, three_sequences())


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_low_precision_is_close(variant: Variant, path: Path, quantization: str | None) -> None:
    """A loose bound that an expert in the wrong place exceeds.

    It is on the median token, since rounding lets the router choose other experts for some.
    """
    model = load_step_model(path, "kernels", dtype="bfloat16", quantization=quantization)
    (ids,) = token_sequences((40,))
    actual = PagedRunner(model).step({"a": ids})["a"]
    (expected,) = variant.reference(path)([ids])
    errors = (actual - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors.median() < 0.1


def _fill_experts(path: Path, first: int, value: float) -> None:
    """Overwrite the weights of all experts from `first` on, and let the router score all alike."""
    tensors = load_file(path / "model.safetensors")
    plan = load_hf_config(path).plan
    for parameter in plan.parameters.values():
        is_router = ".moe.router." in parameter.name or "correction_bias" in parameter.name
        for name, fill in chain.from_iterable(fills(parameter)):
            if name not in tensors:
                continue
            if is_router:
                tensors[name].zero_()
            elif fill.expert is not None and fill.expert >= first:
                (tensors[name][fill.expert] if fill.is_stacked else tensors[name]).fill_(value)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_experts_with_equal_scores_are_chosen_from_the_lowest(
    variant: Variant, tmp_path: Path, serves: str
) -> None:
    """Two experts per token are chosen: the weights of the others have no effect."""
    path = variant.make(tmp_path / "model")
    sequences = three_sequences()
    logits = []
    for value in (1.0, -3.0):
        _fill_experts(path, 2, value)
        logits.append(PagedRunner(load_step_model(path, serves)).step(sequences))
    for name in sequences:
        assert torch.equal(logits[0][name], logits[1][name])
    _fill_experts(path, 1, 1.0)
    changed = PagedRunner(load_step_model(path, serves)).step(sequences)
    assert not torch.equal(changed["a"], logits[0]["a"])


BAD_CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral-8x7b-like", {"num_experts_per_tok": 6}, "top_k must be 1 to 5 .* not 6"),
    ("mixtral-8x7b-like", {"num_local_experts": 0}, "num_local_experts must be a positive"),
    ("phi-3.5-moe-like", {"num_experts_per_tok": 3}, "num_experts_per_tok 3 is not supported"),
    ("phi-3.5-moe-like", {"router_jitter_noise": -1.0}, "jitter .* 0 or above, not -1.0"),
    ("qwen1.5-moe-like", {"decoder_sparse_step": 0}, "decoder_sparse_step must be a positive"),
    ("qwen1.5-moe-like", {"mlp_only_layers": ["0"]}, "mlp_only_layers must be a list of layers"),
    ("qwen1.5-moe-like", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate"),
    ("qwen3-moe-like", {"norm_topk_prob": "yes"}, "norm_topk_prob must be true or false"),
    (
        "qwen3-moe-like",
        {"use_sliding_window": True, "sliding_window": None},
        "sliding_window must be a positive integer, not None",
    ),
    ("olmoe-like", {"clip_qkv": 0.0}, "clip_qkv must be above 0"),
    ("granite-moe-like", {"logits_scaling": 0}, "logits_scaling must be above 0"),
    ("glm-4.5-like", {"n_group": 4}, "6 experts cannot form 4 groups of equal size"),
    ("glm-4.5-like", {"n_group": 6, "topk_group": 3}, "groups of one expert"),
    ("glm-4.5-like", {"first_k_dense_replace": -1}, "first_k_dense_replace must be an integer, 0"),
    ("glm-4.5-like", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
    ("glm-4.5-like", {"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers 1000000000"),
]


@pytest.mark.parametrize(
    ("name", "fields", "message"), BAD_CONFIGS, ids=[f"{n}-{f}" for n, f, _ in BAD_CONFIGS]
)
def test_a_bad_config_is_refused_in_one_line(
    name: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {**MIXTURES[name].config, **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as error:
        load_hf_config(tmp_path)
    assert "\n" not in str(error.value)


def _expert_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """All tensors, and the name of one that holds an expert or all experts of the last layer."""
    plan = load_hf_config(path).plan
    (experts,) = [op for op in plan.layers[-1] if isinstance(op, Experts)]
    tensors = load_file(path / "model.safetensors")
    names = {
        source.name.replace("{expert}", "1")
        for layout in plan.parameters[experts.down].layouts
        for source in layout
    }
    (name,) = names & tensors.keys()
    return tensors, name


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_a_missing_expert_tensor_is_named(variant: Variant, tmp_path: Path, serves: str) -> None:
    path = variant.make(tmp_path / "model")
    tensors, name = _expert_tensors(path)
    del tensors[name]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="missing") as error:
        load_step_model(path, serves)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_an_expert_tensor_of_wrong_shape_is_named(
    variant: Variant, tmp_path: Path, serves: str
) -> None:
    path = variant.make(tmp_path / "model")
    tensors, name = _expert_tensors(path)
    tensors[name] = tensors[name][..., 1:].contiguous()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="should be") as error:
        load_step_model(path, serves)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
