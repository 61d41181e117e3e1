"""The model on the CPU kernels, on every instruction set: accuracy and bit-exactness."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.checkpoints import make_checkpoint, plant_outliers
from support.cpu_kernels import EMULATED, NATIVE
from support.models import load_step_model
from support.paged import PagedRunner
from taco_kernels.cpu.program_structs import OP_KINDS
from taco_worker.backends.cpu import cpu_model
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.sampling.token_masks import TokenMasks, mask_of, num_words

ARCHITECTURES: dict[str, dict[str, object]] = {
    # No size is a multiple of sixteen, so every kind of padding occurs.
    "llama": {
        "architecture": "LlamaForCausalLM",
        "hidden_size": 72,
        "intermediate_size": 100,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "sums of two segments": {
        "architecture": "LlamaForCausalLM",
        "intermediate_size": 896,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 112,
    },
    "mistral": {"architecture": "MistralForCausalLM", "sliding_window": 11},
    "opt-350m": {
        "architecture": "OPTForCausalLM",
        "do_layer_norm_before": False,
        "word_embed_proj_dim": 40,
    },
    "gpt2": {"architecture": "GPT2LMHeadModel"},
    "outliers": {"architecture": "LlamaForCausalLM"},
}
# Stored format of a model, and the allowed mean deviation of its logits from float32.
TYPES: dict[str, tuple[dict[str, Any], float]] = {
    "float32": ({"dtype": "float32"}, 1e-5),
    "bfloat16": ({"dtype": "bfloat16"}, 0.02),
    "int8": ({"dtype": "bfloat16", "quantization": "int8"}, 0.06),
    "int8 KV": ({"dtype": "bfloat16", "kv_cache_dtype": "int8"}, 0.03),
    "fp8 KV": ({"dtype": "bfloat16", "kv_cache_dtype": "fp8"}, 0.1),
    "fp8_e5m2 KV": ({"dtype": "bfloat16", "kv_cache_dtype": "fp8_e5m2"}, 0.2),
    "float32, int8": ({"dtype": "float32", "quantization": "int8"}, 0.06),
    "int8 LM head": ({"dtype": "bfloat16", "quantize_lm_head": True}, 0.03),
}
TOKENS = torch.randint(384, (45,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module", params=[*NATIVE, *EMULATED])
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    # The weights are exact in both types: only the computation differs.
    make_checkpoint(path, dtype=torch.bfloat16, **ARCHITECTURES[request.param])  # type: ignore[arg-type]
    return plant_outliers(path) if request.param == "outliers" else path


@cache
def expected_logits(checkpoint: Path) -> Tensor:
    return PagedRunner(load_step_model(checkpoint, "torch")).step({"a": TOKENS})["a"]


def load(checkpoint: Path, isa: str, kind: str, num_threads: int = 2) -> StepModel:
    return load_step_model(checkpoint, isa, num_threads=num_threads, **TYPES[kind][0])


@pytest.mark.parametrize("kind", TYPES)
def test_logits_match_torch(checkpoint: Path, isa: str, kind: str) -> None:
    expected = expected_logits(checkpoint)
    logits = PagedRunner(load(checkpoint, isa, kind)).step({"a": TOKENS})["a"]
    error = (logits - expected).abs().mean() / expected.std()
    # Channels that are many times greater than the others make every rounding error greater.
    growth = 1.5 if checkpoint.name.startswith("outliers") else 1.0
    assert float(error) < growth * TYPES[kind][1]


@pytest.mark.parametrize("kind", TYPES)
def test_bits_do_not_depend_on_neighbours_chunks_rows_or_threads(
    checkpoint: Path, isa: str, kind: str
) -> None:
    model = load(checkpoint, isa, kind)
    whole = PagedRunner(model).step({"a": TOKENS})["a"]

    def in_steps(model: StepModel, sizes: Sequence[int], neighbour: Sequence[int] = ()) -> Tensor:
        """Run a neighbour in the same steps, two tokens a step."""
        runner = PagedRunner(model, seed=1)
        ids, others, logits = list(TOKENS), list(neighbour), []
        for size in sizes:
            chunks = {"b": others[:2], "a": ids[:size]} if others else {"a": ids[:size]}
            logits.append(runner.step(chunks)["a"])
            ids, others = ids[size:], others[2:]
        return torch.cat(logits)

    assert torch.equal(in_steps(model, [len(TOKENS)]), whole)
    assert torch.equal(in_steps(model, [7, 1, 1, 30, 6]), whole)
    assert torch.equal(in_steps(model, [7, 1, 1, 30, 6], TOKENS[5:]), whole)
    assert torch.equal(in_steps(load(checkpoint, isa, kind, num_threads=1), [45]), whole)

    rows = np.array([3, 44], dtype=np.int32)
    assert torch.equal(PagedRunner(model).logits_at({"a": TOKENS}, rows), whole[[3, 44]])


@pytest.mark.parametrize("kind", TYPES)
def test_bits_do_not_depend_on_the_size_of_the_cache(
    checkpoint: Path, isa: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits(cache_bytes: int) -> Tensor:
        monkeypatch.setattr(cpu_model, "last_level_cache_bytes", lambda: cache_bytes)
        runner = PagedRunner(load(checkpoint, isa, kind))
        steps = [TOKENS[:1], TOKENS[1:3], TOKENS[3:6], TOKENS[6:]]
        return torch.cat([runner.step({"a": step})["a"] for step in steps])

    assert torch.equal(logits(0), logits(1 << 40))


@pytest.mark.parametrize("spare_bytes", [-1, 0])
def test_the_program_knows_whether_all_weights_fit_in_the_cache(
    tmp_path: Path, spare_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, architecture="MixtralForCausalLM")
    model = load(tmp_path, NATIVE[0], "bfloat16")
    assert isinstance(model, cpu_model.CpuModel)
    cache_bytes = model._weights.memory.numel() + spare_bytes
    monkeypatch.setattr(cpu_model, "last_level_cache_bytes", lambda: cache_bytes)
    PagedRunner(model)

    program = model._ready()
    linears = [op for op in program._arrays[1] if OP_KINDS[op.kind] == "linear"]
    found = {bool(op.matrix.is_cached) for op in linears}
    found.add(bool(program._program.lm_head.is_cached))
    for experts in model._weights.experts.values():
        found |= {bool(struct.is_cached) for struct in experts.structs}
    assert linears
    assert model._weights.experts
    assert found == {spare_bytes >= 0}


def test_most_likely_tokens_match_the_logits(checkpoint: Path, isa: str) -> None:
    model = load(checkpoint, isa, "bfloat16")
    PagedRunner(model)
    hidden = torch.randn(70, model.plan.hidden_size, generator=torch.Generator().manual_seed(1))
    expected = model.compute_logits(hidden).argmax(-1)
    assert torch.equal(model.most_likely(hidden).long(), expected)

    token_ids, logprobs = model.most_likely_logprobs(hidden)

    assert torch.equal(token_ids.long(), expected)
    num_top = np.zeros(70, dtype=np.int32)
    _, wanted, _ = model.sampling.gather_logprobs(model.compute_logits(hidden), expected, num_top)
    assert torch.equal(logprobs, wanted[:, 0])


def test_a_step_with_its_most_likely_tokens_is_two_calls_in_one(checkpoint: Path, isa: str) -> None:
    model = load(checkpoint, isa, "bfloat16")
    inputs = ModelInput(
        token_ids=torch.tensor(TOKENS[:20], dtype=torch.int32),
        positions=np.arange(20, dtype=np.int32),
        query_start=np.array([0, 20], dtype=np.int32),
        seq_lens=np.array([20], dtype=np.int32),
        block_tables=np.array([[3, 1]], dtype=np.int32),
        output_rows=np.array([4, 19], dtype=np.int32),
    )
    model.allocate_kv(4, 16, 64)
    for gives_logprobs in (False, True):
        token_ids, logprobs = model.forward_most_likely(inputs, gives_logprobs=gives_logprobs)
        hidden = model.forward(inputs)
        assert torch.equal(token_ids, model.most_likely(hidden))
        if gives_logprobs:
            assert logprobs is not None
            assert torch.equal(logprobs, model.most_likely_logprobs(hidden)[1])
        else:
            assert logprobs is None


@pytest.mark.parametrize("num_rows", [1, 5, 100])
@pytest.mark.parametrize("share", [0.002, 0.05, 0.6])
def test_masks_ban_tokens_whatever_is_skipped(
    checkpoint: Path, isa: str, num_rows: int, share: float
) -> None:
    """Alone a row's narrow mask skips blocks, beside a row without a mask it does not."""
    model = load(checkpoint, isa, "bfloat16")
    PagedRunner(model)
    vocab_size = model.plan.vocab_size
    hidden = torch.randn(num_rows, model.plan.hidden_size)
    is_allowed = torch.rand(num_rows, vocab_size) < share
    is_allowed[:, 77] = True
    for rows in (np.arange(num_rows), np.arange(1, num_rows, 2)):
        bits = [mask_of(is_allowed[row].nonzero()[:, 0].tolist(), vocab_size) for row in rows]
        shape = (rows.size, num_words(vocab_size))
        masks = TokenMasks(
            rows, np.array(bits, dtype=np.int32).reshape(shape), np.zeros(rows.size, dtype=np.bool_)
        )
        expected = model.compute_logits(hidden)
        expected[rows] = expected[rows].masked_fill(~is_allowed[rows], -torch.inf)
        assert torch.equal(model.compute_logits(hidden, masks), expected)
        assert torch.equal(model.most_likely(hidden, masks).long(), expected.argmax(-1))
