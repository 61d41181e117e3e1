"""Every recipe against transformers: the same checkpoint, the same logits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from support.checkpoint_tokenizer import END_OF_TURN_TOKEN_ID, EOS_TOKEN_ID
from support.checkpoints import make_checkpoint
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.dtypes import dtype_name, resolve_dtype
from taco_worker.models.step_model import StepModel

TOLERANCE = 1e-4
VOCAB_SIZE = 384
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_SCALING = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Case:
    architecture: str
    overrides: dict[str, Any] = field(default_factory=dict)
    num_tokens: int = 75
    weights: str = "safetensors"


CASES = {
    "llama": Case("LlamaForCausalLM"),
    "llama-bin": Case("LlamaForCausalLM", weights="bin"),
    "llama-gqa-3-to-1-head-dim-80": Case(
        "LlamaForCausalLM",
        {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 80, "hidden_size": 96},
    ),
    "llama-tied-mqa": Case(
        "LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 1}
    ),
    "llama-biases": Case("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-3-scaling-long": Case(
        "LlamaForCausalLM", {"rope_parameters": LLAMA3_SCALING}, num_tokens=500
    ),
    "llama-linear-scaling": Case(
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5}},
    ),
    "llama-yarn-scaling": Case(
        "LlamaForCausalLM", {"rope_parameters": YARN_SCALING}, num_tokens=300
    ),
    "mistral-full": Case("MistralForCausalLM", {"sliding_window": None}),
    "mistral-window-below-prompt": Case("MistralForCausalLM", {"sliding_window": 13}),
    "qwen2": Case("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-some-layers-slide": Case(
        "Qwen2ForCausalLM",
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 21,
            "max_window_layers": 1,
        },
    ),
    "opt": Case("OPTForCausalLM", weights="bin"),
    "opt-post-norm-projected": Case(
        "OPTForCausalLM", {"do_layer_norm_before": False, "word_embed_proj_dim": 48}
    ),
    "opt-no-bias": Case("OPTForCausalLM", {"enable_bias": False}),
    "gpt2": Case("GPT2LMHeadModel"),
    "gpt2-bin-inner": Case("GPT2LMHeadModel", {"n_inner": 200}, weights="bin"),
}


@dataclass(frozen=True)
class Loaded:
    model: StepModel
    token_ids: list[int]
    expected: Tensor
    oracle: Any


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    token_ids: list[int]
    expected: Tensor
    oracle: Any


@pytest.fixture(scope="module", params=CASES)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    case = CASES[request.param]
    path = make_checkpoint(
        tmp_path_factory.mktemp("model"),
        case.architecture,
        weights=case.weights,
        **case.overrides,
    )
    oracle = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(VOCAB_SIZE, (case.num_tokens,), generator=generator)
    with torch.inference_mode():
        expected = oracle(token_ids[None]).logits[0]
    return Checkpoint(path, token_ids.tolist(), expected, oracle)


@pytest.fixture(scope="module", params=["kernels", "torch"])
def loaded(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Loaded:
    model = load_step_model(checkpoint.path, request.param)
    return Loaded(model, checkpoint.token_ids, checkpoint.expected, checkpoint.oracle)


def _random_chunks(token_ids: list[int], rng: random.Random) -> Iterator[list[int]]:
    while token_ids:
        size = rng.randint(1, 40)
        yield token_ids[:size]
        token_ids = token_ids[size:]


def _assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def test_prompt_in_one_chunk(loaded: Loaded) -> None:
    logits = PagedRunner(loaded.model).step({"a": loaded.token_ids})["a"]
    assert logits.dtype == torch.float32
    _assert_close(logits, loaded.expected)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prompt_in_random_chunks(loaded: Loaded, seed: int) -> None:
    runner = PagedRunner(loaded.model, num_blocks=80, seed=seed)
    chunks = _random_chunks(loaded.token_ids, random.Random(seed))
    logits = [runner.step({"a": chunk})["a"] for chunk in chunks]
    _assert_close(torch.cat(logits), loaded.expected)


def test_token_by_token(loaded: Loaded) -> None:
    runner = PagedRunner(loaded.model)
    logits = [runner.step({"a": [token]})["a"] for token in loaded.token_ids[:60]]
    _assert_close(torch.cat(logits), loaded.expected[:60])


def test_mixed_batch(loaded: Loaded) -> None:
    """Three sequences at different points of the same text, prefilling and decoding together."""
    ids = loaded.token_ids
    runner = PagedRunner(loaded.model, num_blocks=120)
    first = runner.step({"a": ids[:30], "b": ids[:1]})
    second = runner.step({"c": ids[:17], "a": ids[30:31], "b": ids[1:5]})
    third = runner.step({"b": ids[5:6], "c": ids[17:60], "a": ids[31:32]})
    _assert_close(torch.cat([first["a"], second["a"], third["a"]]), loaded.expected[:32])
    _assert_close(torch.cat([first["b"], second["b"], third["b"]]), loaded.expected[:6])
    _assert_close(torch.cat([second["c"], third["c"]]), loaded.expected[:60])


def test_greedy_tokens(loaded: Loaded) -> None:
    prompt = loaded.token_ids[:20]
    generated = loaded.oracle.generate(
        torch.tensor([prompt]), max_new_tokens=12, min_new_tokens=12, do_sample=False
    )
    # min_new_tokens bans the end of sequence, so the loop below must ban it, too.
    runner = PagedRunner(loaded.model)
    chunk, tokens = prompt, list(prompt)
    for _ in range(12):
        logits = runner.step({"a": chunk})["a"][-1].clone()
        logits[[EOS_TOKEN_ID, END_OF_TURN_TOKEN_ID]] = -torch.inf
        chunk = [int(logits.argmax())]
        tokens += chunk
    assert tokens == generated[0].tolist()


def test_skipped_output_rows_do_not_change_the_others(loaded: Loaded) -> None:
    ids = loaded.token_ids
    runner = PagedRunner(loaded.model)
    wanted = runner.logits_at({"a": ids[:33], "b": ids[:20]}, np.array([7, 52], dtype=np.int32))
    _assert_close(wanted, loaded.expected[[7, 19]])
    nothing = runner.logits_at({"a": ids[33:40]}, np.zeros(0, dtype=np.int32))
    assert nothing.shape == (0, VOCAB_SIZE)
    _assert_close(runner.step({"a": ids[40:50]})["a"], loaded.expected[40:50])


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_dynamic_scaling_at_its_full_length(tmp_path: Path, serves: str) -> None:
    """At factor x original tokens the published rule yields TACO's fixed theta."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    path = make_checkpoint(
        tmp_path, "LlamaForCausalLM", rope_parameters=rope, max_position_embeddings=50
    )
    oracle = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    token_ids = torch.arange(100) * 3
    with torch.inference_mode():
        expected = oracle(token_ids[None]).logits[0]
    model = load_step_model(path, serves)
    assert model.plan.max_position_embeddings == 100
    _assert_close(PagedRunner(model).step({"a": token_ids.tolist()})["a"], expected)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_bfloat16_is_close_to_float32(tmp_path: Path, serves: str) -> None:
    path = make_checkpoint(tmp_path, dtype=torch.bfloat16)
    assert load_hf_config(path).checkpoint_dtype == "bfloat16"
    token_ids = list(range(3, 60))
    narrow, wide = (
        PagedRunner(load_step_model(path, serves, dtype=dtype)).step({"a": token_ids})["a"]
        for dtype in ("bfloat16", "float32")
    )
    assert (narrow - wide).abs().mean() < 0.05


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_float16_on_a_cpu_matches_transformers(
    tmp_path: Path, serves: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_checkpoint(tmp_path, dtype=torch.float16)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16).eval()
    token_ids = list(range(3, 60))
    with torch.inference_mode():
        expected = oracle(torch.tensor([token_ids])).logits[0].float()
    dtype = resolve_dtype("half", "float16", torch.device("cpu"))
    assert [record.message for record in caplog.records if "runs as float32" in record.message]
    half, bfloat16 = (
        PagedRunner(load_step_model(path, serves, dtype=name)).step({"a": token_ids})["a"]
        for name in (dtype_name(dtype), "bfloat16")
    )
    # The remaining difference is transformers' rounding to float16.
    assert 3 * (half - expected).abs().mean() < (bfloat16 - expected).abs().mean()
    assert (half - expected).abs().max() < 0.05
