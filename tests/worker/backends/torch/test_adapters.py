"""LoRA adapters in torch: what one computes never reaches the rows of others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from taco_kernels.reference import adapters as reference
from taco_worker.backends.torch.adapters import AdapterWeights

CPU = torch.device("cpu")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_agrees_with_the_reference() -> None:
    pairs = [(numbers(3, 16), numbers(8, 3)), None, (numbers(5, 16, seed=1), numbers(8, 5, seed=1))]
    x, ids = numbers(7, 16, seed=2), torch.tensor([0, -1, 2, 1, 2, 0, -1], dtype=torch.int32)
    out = AdapterWeights(pairs, torch.float32, CPU)(x, ids)
    torch.testing.assert_close(out, reference.multiply_adapters(x, ids, pairs, 8))


def test_an_adapter_that_overflows_changes_its_own_rows_alone() -> None:
    small, hot = numbers(4, 512) / 32, torch.full((4, 512), 300.0)
    pairs = [(small, numbers(8, 4)), (hot, numbers(8, 4))]
    weights = AdapterWeights(pairs, torch.float16, CPU)
    x, ids = torch.ones(3, 512, dtype=torch.float16), torch.tensor([0, -1, 1], dtype=torch.int32)
    out = weights(x, ids)
    assert out.isfinite().all(1).tolist() == [True, True, False]
    alone = AdapterWeights(pairs[:1], torch.float16, CPU)(x[:1], ids[:1])
    torch.testing.assert_close(out[:1], alone)


def test_rejects_numbers_that_overflow_in_the_models_type() -> None:
    pairs = [(torch.full((4, 16), 7e4), numbers(8, 4))]
    with pytest.raises(ValueError, match="too large for float16"):
        AdapterWeights(pairs, torch.float16, CPU)
