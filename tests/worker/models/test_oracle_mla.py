"""Multi-head latent attention against its oracles: the same checkpoint, the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.architectures.variant import Variant, token_sequences
from support.architectures.variants import VARIANTS
from support.cpu_kernels import NATIVE
from support.mixed_batches import (
    TOLERANCE,
    assert_bits_are_a_sequences_own,
    assert_follows,
    in_chunks,
    three_sequences,
)
from support.models import load_step_model
from support.paged import PagedRunner
from taco_llm.cli.main import main
from taco_worker.models.config import load_hf_config

LATENT = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
VARIANTS_BY_NAME = {
    name: variant for name, variant in VARIANTS.items() if variant.architecture in LATENT
}
DENSE: dict[str, Any] = {"first_k_dense_replace": 3}  # more than there are layers


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
    sequences = three_sequences()
    actual = in_chunks(PagedRunner(load_step_model(path, serves)), sequences)
    assert_follows(actual, variant.reference(path), sequences)


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
    assert_bits_are_a_sequences_own(path, dtype, quantization, three_sequences())


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


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_the_published_sizes_store_576_numbers_per_token_and_layer(
    serves: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Section 2.1.2 of DeepSeek-V2: d_c = 512 and d_h^R = 64, here in bf16."""
    sizes: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, **DENSE}
    path = VARIANTS["deepseek-v3-like"].make(tmp_path / "model", **sizes)
    model = load_step_model(path, serves, dtype="bfloat16")
    token_bytes = (512 + 64) * 2 * model.plan.num_layers
    assert model.kv_block_bytes(16) == 16 * token_bytes
    assert main(["plan", str(path)]) == 0
    line = f"KV cache: {token_bytes // 2:,} numbers per token, {token_bytes:,} bytes in bf16"
    assert line in capsys.readouterr().out.splitlines()


def test_more_experts_than_the_best_groups_hold_are_rejected(tmp_path: Path) -> None:
    """The two best groups hold two experts, and three are to be chosen."""
    path = VARIANTS["deepseek-v2-like"].make(tmp_path / "model", n_group=6)
    with pytest.raises(ValueError, match="top_k must be 1 to 2 with 2 experts to choose from"):
        load_hf_config(path)
