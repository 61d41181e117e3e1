"""Mixtures of experts: bits, low precision, and bad tensors of experts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.architectures.mixture import VARIANTS
from support.architectures.variant import Variant, token_sequences
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.models.registry import supported_architectures

MIXTURES = {v.name: v for v in VARIANTS if v.architecture in supported_architectures()}
Sequences = dict[str, list[int]]


def _sequences() -> Sequences:
    return dict(zip("abc", token_sequences((52, 3, 40)), strict=True))


def _in_chunks(runner: PagedRunner, sequences: Sequences, seed: int = 0) -> dict[str, Tensor]:
    """Logits of the sequences, which are cut into chunks of random size beside one another."""
    rng = random.Random(seed)
    rest = dict(sequences)
    logits: dict[str, list[Tensor]] = {name: [] for name in sequences}
    while rest:
        names = [name for name in rest if rng.random() < 0.8] or list(rest)
        chunks = {name: rest[name][: rng.choice((1, 1, rng.randint(1, 24)))] for name in names}
        for name, rows in runner.step(chunks).items():
            logits[name].append(rows)
            rest[name] = rest[name][len(chunks[name]) :]
        rest = {name: ids for name, ids in rest.items() if ids}
    return {name: torch.cat(rows) for name, rows in logits.items()}


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
    def runner(num_threads: int = 2) -> PagedRunner:
        return PagedRunner(
            load_step_model(
                path, "kernels", dtype=dtype, quantization=quantization, num_threads=num_threads
            )
        )

    sequences = _sequences()
    expected = runner().step(sequences)
    alone = {name: runner(1).step({name: ids})[name] for name, ids in sequences.items()}
    chunked = [_in_chunks(runner(), sequences, seed) for seed in (1, 2)]
    for other in (alone, *chunked):
        for name, logits in expected.items():
            assert torch.equal(other[name], logits)


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
