"""The norm references against transformers' models that norm in other ways than Llama."""

from __future__ import annotations

import pytest
import torch
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from taco_kernels.reference.norm import layer_norm, rms_norm

DTYPES = [torch.float32, torch.bfloat16]


def rows(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(6, 3, 16) * 2 + 1).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_without_weights_is_olmos(dtype: torch.dtype) -> None:
    x = rows(dtype)
    torch.testing.assert_close(layer_norm(x, None, None, 1e-5), OlmoLayerNorm(16)(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_each_head_are_coheres(dtype: torch.dtype) -> None:
    x, module = rows(dtype), CohereLayerNorm((3, 16), eps=1e-5)
    torch.nn.init.normal_(module.weight)
    module = module.to(dtype)
    torch.testing.assert_close(layer_norm(x, module.weight, None, 1e-5), module(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_float32_weight_is_rounded_once_as_in_gemma_and_olmo2(dtype: torch.dtype) -> None:
    x, gemma, olmo = rows(dtype), Gemma2RMSNorm(16, eps=1e-6), Olmo2RMSNorm(16, eps=1e-6)
    torch.nn.init.normal_(gemma.weight)
    torch.nn.init.normal_(olmo.weight)
    assert torch.equal(rms_norm(x, 1 + gemma.weight.float(), 1e-6), gemma(x))
    assert torch.equal(rms_norm(x, olmo.weight.float(), 1e-6), olmo(x))


def test_a_bias_is_added_and_missing_weights_are_one() -> None:
    x, bias = rows(torch.float32), torch.randn(16)
    ones = torch.ones(16)
    assert torch.equal(rms_norm(x, None, 1e-6), rms_norm(x, ones, 1e-6))
    assert torch.equal(rms_norm(x, None, 1e-6, bias), rms_norm(x, ones, 1e-6) + bias)
