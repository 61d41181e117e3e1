"""Multi-head latent attention against its oracles: the same checkpoint, the same logits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.architectures.variant import Oracle, Variant, token_sequences
from support.architectures.variants import VARIANTS
from support.cpu_kernels import NATIVE
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config

TOLERANCE = 1e-4
LATENT = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
VARIANTS_BY_NAME = {
    name: variant for name, variant in VARIANTS.items() if variant.architecture in LATENT
}
DENSE: dict[str, Any] = {"first_k_dense_replace": 3}  # more than there are layers
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


def _assert_close(actual: dict[str, Tensor], oracle: Oracle, sequences: Sequences) -> None:
    for name, expected in zip(sequences, oracle(list(sequences.values())), strict=True):
        torch.testing.assert_close(actual[name], expected, atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module", params=list(VARIANTS_BY_NAME))
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS_BY_NAME[request.param]


@pytest.fixture(scope="module", params=[{}, DENSE], ids=["experts", "dense"])
def path(
    request: pytest.FixtureRequest, variant: Variant, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return variant.make(tmp_path_factory.mktemp("model") / variant.name, **request.param)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_logits_of_a_mixed_batch(variant: Variant, path: Path, serves: str) -> None:
    sequences = _sequences()
    actual = _in_chunks(PagedRunner(load_step_model(path, serves)), sequences)
    _assert_close(actual, variant.reference(path), sequences)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_greedy_tokens(variant: Variant, path: Path, serves: str) -> None:
    (prompt,) = token_sequences((20,), seed=1)
    runner = PagedRunner(load_step_model(path, serves))
    tokens, chunk = [], prompt
    for _ in range(8):
        chunk = [int(runner.step({"a": chunk})["a"][-1].argmax())]
        tokens += chunk
    assert tokens == variant.reference(path).greedy(prompt, 8)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_sequences_share_the_latent_vectors_of_a_prefix(
    variant: Variant, path: Path, serves: str
) -> None:
    first, other = token_sequences((40, 40), seed=2)
    second = [*first[:32], *other[32:]]
    runner = PagedRunner(load_step_model(path, serves), block_size=16)
    runner.step({"a": first})
    runner.share_prefix("b", "a", 2)
    actual = runner.step({"b": second[32:]})["b"]
    (expected,) = variant.reference(path)([second])
    torch.testing.assert_close(actual, expected[32:], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("float32", None), ("bfloat16", None), ("bfloat16", "int8")]
)
def test_bits_do_not_depend_on_neighbours_and_chunks(
    path: Path, dtype: str, quantization: str | None
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


@pytest.mark.parametrize("serves", NATIVE)
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_low_precision_is_close(
    variant: Variant, path: Path, quantization: str | None, serves: str
) -> None:
    """A loose bound that a head's wrong columns or scales exceed, with every instruction set."""
    model = load_step_model(path, serves, dtype="bfloat16", quantization=quantization)
    (ids,) = token_sequences((40,))
    actual = PagedRunner(model).step({"a": ids})["a"]
    (expected,) = variant.reference(path)([ids])
    error = (actual - expected).norm() / expected.norm()
    assert error < 0.1


def test_a_layer_stores_one_latent_vector_and_one_key_per_token(path: Path) -> None:
    """Table 1 of DeepSeek-V2: d_c + d_h^R numbers per token and layer, for any number of heads."""
    plan = load_hf_config(path).plan
    assert plan.kv_elements_per_token == (24 + 8) * plan.num_layers


def test_the_published_sizes_store_576_numbers_per_token_and_layer(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, **DENSE}
    path = VARIANTS["deepseek-v3-like"].make(tmp_path / "model", **sizes)
    plan = load_hf_config(path).plan
    assert plan.kv_elements_per_token == 576 * plan.num_layers


# Its two best groups hold two experts, and three are to be chosen.
IMPOSSIBLE = ("deepseek-v2-like", "n_group", 6)
FIELDS = [
    pytest.param(variant, field, value, id=f"{variant.name}-{field}-{value}"[:60])
    for variant in VARIANTS_BY_NAME.values()
    for field, value in variant.fields
    if (variant.name, field, value) != IMPOSSIBLE
]


@pytest.mark.parametrize(("variant", "field", "value"), FIELDS)
def test_each_field_is_followed(variant: Variant, field: str, value: Any, tmp_path: Path) -> None:
    path = variant.make(tmp_path / "model", **{field: value})
    sequences = _sequences()
    for serves in ("kernels", "torch"):
        actual = PagedRunner(load_step_model(path, serves)).step(sequences)
        _assert_close(actual, variant.reference(path), sequences)


REJECTED = [
    pytest.param(variant, field, value, id=f"{variant.name}-{field}-{value}")
    for variant in VARIANTS_BY_NAME.values()
    for field, value in variant.rejected
]


@pytest.mark.parametrize(("variant", "field", "value"), REJECTED)
def test_routers_that_no_model_has_are_rejected(
    variant: Variant, field: str, value: Any, tmp_path: Path
) -> None:
    path = variant.make(tmp_path / "model", **{field: value})
    with pytest.raises(ValueError, match=field):
        load_hf_config(path)


def test_more_experts_than_the_best_groups_hold_are_rejected(tmp_path: Path) -> None:
    name, field, value = IMPOSSIBLE
    overrides: dict[str, Any] = {field: value}
    path = VARIANTS[name].make(tmp_path / "model", **overrides)
    with pytest.raises(ValueError, match="top_k must be 1 to 2 with 2 experts to choose from"):
        load_hf_config(path)
