"""gpt-oss: sinks and windows on shared prefixes, invariance of its experts, checkpoints refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.mixed_batches import assert_bits_are_a_sequences_own, three_sequences
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.ops.experts import Experts

VARIANT = VARIANTS["gpt-oss-like"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return VARIANT.make(tmp_path_factory.mktemp("model") / "gpt-oss")


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_sequences_share_a_prefix(path: Path, serves: str) -> None:
    """The shared blocks hold no sinks: each sequence adds them to its own sums."""
    first, other = token_sequences((40, 40), seed=2)
    second = [*first[:32], *other[32:]]
    runner = PagedRunner(load_step_model(path, serves), block_size=16)
    runner.step({"a": first})
    runner.share_prefix("b", "a", 2)
    actual = runner.step({"b": second[32:], "c": other})
    expected = VARIANT.reference(path)([second, other])
    torch.testing.assert_close(actual["b"], expected[0][32:], atol=1e-4, rtol=0)
    torch.testing.assert_close(actual["c"], expected[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("float32", None), ("bfloat16", None), ("bfloat16", "int8")]
)
def test_bits_do_not_depend_on_neighbours_and_chunks(
    path: Path, dtype: str, quantization: str | None
) -> None:
    sequences = three_sequences()
    actual = assert_bits_are_a_sequences_own(path, dtype, quantization, sequences)["c"]
    error = (actual - VARIANT.reference(path)([sequences["c"]])[0]).norm() / actual.norm()
    assert error < 0.1


def test_the_published_sizes_and_options(tmp_path: Path) -> None:
    """config.json of openai/gpt-oss-20b without its quantization."""
    config = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = load_hf_config(tmp_path).plan
    assert plan.num_elements == 20_914_757_184  # the parameters that its publisher counts
    assert plan.max_position_embeddings == 131072
    assert [op.window for op in plan.ops if isinstance(op, Attend)] == [128, None] * 12
    assert {(op.alpha, op.limit) for op in plan.ops if isinstance(op, Experts)} == {(1.702, 7.0)}


def test_quantized_checkpoints_are_refused_in_one_line(tmp_path: Path) -> None:
    quantization = {"quant_method": "mxfp4"}
    path = VARIANT.make(tmp_path / "model", quantization_config=quantization)
    with pytest.raises(ValueError, match=r"\Athe checkpoint is quantized \(mxfp4\)[^\n]+\Z"):
        load_hf_config(path)
