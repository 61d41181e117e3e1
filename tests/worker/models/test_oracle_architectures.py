"""Every variant of every architecture against its oracle: the same checkpoint, the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.architectures.variant import Oracle, Variant, token_sequences
from support.architectures.variants import VARIANTS
from support.mixed_batches import TOLERANCE, assert_follows, in_chunks, three_sequences
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.registry import supported_architectures

NUM_BLOCKS, BLOCK_SIZE = 40, 16
_NAMES = supported_architectures()
SUPPORTED = [v for v in VARIANTS.values() if v.architecture in _NAMES]


def _oracle(variant: Variant, path: Path, num_blocks: int = NUM_BLOCKS) -> Oracle:
    """Of the lengths that `PagedRunner` serves, which fix long rope."""
    length = load_hf_config(path).plan.max_position_embeddings
    return variant.reference(path, max_model_len=min(num_blocks * BLOCK_SIZE, length))


def _assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module", params=SUPPORTED, ids=lambda variant: variant.name)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Oracle]:
    variant: Variant = request.param
    path = variant.make(tmp_path_factory.mktemp("model") / variant.name)
    return path, _oracle(variant, path)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_logits_of_a_mixed_batch(checkpoint: tuple[Path, Oracle], serves: str) -> None:
    """Prompts in chunks of any size beside decoding, each row on the KV of the chunks before."""
    path, oracle = checkpoint
    sequences = three_sequences()
    actual = in_chunks(PagedRunner(load_step_model(path, serves), num_blocks=NUM_BLOCKS), sequences)
    assert_follows(actual, oracle, sequences)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_greedy_tokens(checkpoint: tuple[Path, Oracle], serves: str) -> None:
    path, oracle = checkpoint
    (prompt,) = token_sequences((20,), seed=1)
    runner = PagedRunner(load_step_model(path, serves), num_blocks=NUM_BLOCKS)
    tokens, chunk = [], prompt
    for _ in range(8):
        chunk = [int(runner.step({"a": chunk})["a"][-1].argmax())]
        tokens += chunk
    assert tokens == oracle.greedy(prompt, 8)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("num_blocks", [2, 3])
@pytest.mark.parametrize("name", ["phi-3-mini-128k-like", "phi-3-small-128k-like"])
def test_long_rope_is_fixed_by_the_longest_sequence(
    tmp_path: Path, serves: str, num_blocks: int, name: str
) -> None:
    """Up to the original length of 32 tokens the short factors apply."""
    variant = VARIANTS[name]
    path = variant.make(tmp_path / "model")
    sequence = token_sequences((30,))[0]
    runner = PagedRunner(load_step_model(path, serves), num_blocks=num_blocks)
    (expected,) = _oracle(variant, path, num_blocks)([sequence])
    _assert_close(runner.step({"a": sequence})["a"], expected)
