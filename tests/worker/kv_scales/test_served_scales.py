"""Models with a float8 KV cache whose scales are those of layers, or of tokens."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.kv_scales import add_tensors, scales_content, write_scales_file
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.step_model import StepModel

TOKENS = torch.randint(384, (52,), generator=torch.Generator().manual_seed(0)).tolist()
FACTORS = [0.011, 0.02]
# Mean deviation of the logits from those with float32 KV, over their standard deviation.
MAX_ERRORS = {"int8": 0.05, "fp8": 0.1, "fp8_e5m2": 0.2}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


@pytest.fixture
def scales_file(tmp_path: Path) -> Path:
    return write_scales_file(tmp_path / "scales.json", scales_content(FACTORS))


def in_chunks(model: StepModel, sizes: list[int]) -> Tensor:
    runner, ids, logits = PagedRunner(model, seed=1), list(TOKENS), []
    for size in sizes:
        logits.append(runner.step({"a": ids[:size]})["a"])
        ids = ids[size:]
    return torch.cat(logits)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("kv_cache_dtype", MAX_ERRORS)
@pytest.mark.parametrize("has_file", [True, False])
def test_logits_are_near_and_equal_after_a_hit(
    checkpoint: Path, scales_file: Path, serves: str, kv_cache_dtype: str, has_file: bool
) -> None:
    path = str(scales_file) if has_file else None
    if kv_cache_dtype == "fp8_e5m2" and path is not None:
        content = scales_content(FACTORS)
        content["kv_cache"]["dtype"] = "float8_e5m2"
        write_scales_file(scales_file, content)
    exact = in_chunks(load_step_model(checkpoint, serves), [52])
    model = load_step_model(
        checkpoint, serves, kv_cache_dtype=kv_cache_dtype, quantization_param_path=path
    )
    whole = in_chunks(model, [52])
    error = (whole - exact).abs().mean() / exact.std()
    assert 0 < float(error) < MAX_ERRORS[kv_cache_dtype]

    tolerance = 1e-4 if serves == "torch" else 0.0
    chunks = in_chunks(model, [7, 1, 30, 1, 13])
    torch.testing.assert_close(chunks, whole, atol=tolerance, rtol=0)
    runner = PagedRunner(model)
    runner.step({"a": TOKENS})
    runner.share_prefix("b", "a", 2)
    after_hit = runner.step({"b": TOKENS[32:]})["b"]
    torch.testing.assert_close(after_hit, whole[32:], atol=tolerance, rtol=0)


def test_the_latent_of_a_layer_has_one_scale(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(
        tmp_path / "model",
        "DeepseekV2ForCausalLM",
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        head_dim=8,
        first_k_dense_replace=2,
        n_routed_experts=2,
    )
    content = scales_content(FACTORS, model_type="deepseek_v2")
    path = write_scales_file(tmp_path / "scales.json", content)
    for serves in ("kernels", "torch"):
        exact = in_chunks(load_step_model(checkpoint, serves), [52])
        for scales in (str(path), None):
            model = load_step_model(
                checkpoint, serves, kv_cache_dtype="fp8", quantization_param_path=scales
            )
            whole = in_chunks(model, [52])
            assert 0 < float((whole - exact).abs().mean() / exact.std()) < 0.1
            tolerance = 1e-4 if serves == "torch" else 0.0
            chunks = in_chunks(model, [7, 1, 30, 1, 13])
            torch.testing.assert_close(chunks, whole, atol=tolerance, rtol=0)


def layout(checkpoint: Path, path: Path | None = None) -> str:
    model = load_step_model(
        checkpoint,
        "kernels",
        kv_cache_dtype="fp8",
        quantization_param_path=None if path is None else str(path),
    )
    return model.kv_layout


def test_the_file_comes_before_the_checkpoint_and_this_before_tokens(
    checkpoint: Path, scales_file: Path
) -> None:
    of_tokens, of_file = layout(checkpoint), layout(checkpoint, scales_file)
    assert "scales of tokens" in of_tokens
    add_tensors(checkpoint, {f"{layer}.self_attn.kv_scale": 0.5 for layer in range(2)})
    of_checkpoint = layout(checkpoint)
    assert layout(checkpoint, scales_file) == of_file
    assert len({of_tokens, of_file, of_checkpoint}) == 3
    add_tensors(checkpoint, {f"{i}.self_attn.kv_scale": FACTORS[i] for i in range(2)})
    tensors = [torch.tensor(factor).item() for factor in FACTORS]  # as float32 has them
    content = scales_content(tensors)
    assert layout(checkpoint, write_scales_file(scales_file, content)) == layout(checkpoint)


@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.0])
def test_bad_values_of_the_checkpoint(checkpoint: Path, value: float) -> None:
    scales = {"0.self_attn.kv_scale": 1.0, "1.self_attn.k_scale": value, "1.self_attn.v_scale": 1.0}
    add_tensors(checkpoint, scales)
    with pytest.raises(
        ValueError, match=r"layers\.1\.self_attn\.k_scale in .*, which is no finite"
    ):
        layout(checkpoint)
    load_step_model(checkpoint, "kernels", kv_cache_dtype="int8")  # nothing reads them


def test_a_file_without_effect_is_logged(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "taco.worker"):
        load_step_model(checkpoint, "kernels", quantization_param_path="none.json")
    (record,) = caplog.records
    assert record.getMessage() == (
        "quantization_param_path has no effect: the KV cache is float32, which has no scales of "
        "layers; use kv_cache_dtype fp8"
    )
