"""Measures perplexity, greedy tokens and logits of models that are rounded to int8."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.engine.int8.llama import Shape, SmallLlama, random_llama
from bench.engine.int8.planting import Planting, plant
from bench.engine.int8.rounding import Choice, Rounding, round_kv
from taco_llm import LLM, SamplingParams

ENGINE_TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, int8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "bfloat16, fp8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    "bfloat16, fp8_e5m2 KV": {"dtype": "bfloat16", "kv_cache_dtype": "fp8_e5m2"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8, int8 KV": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
}
CHOICES: dict[str, Choice] = {
    "int8 KV alone": Choice(weights=False, group=0, kv=True),
    "int8 weights alone": Choice(group=0),
    "weights, activations by token": Choice(),
    "by 256 values": Choice(group=256),
    "by 128 values": Choice(group=128),
    "by 64 values": Choice(group=64),
    "by token, 8 outliers apart": Choice(outliers=8),
    "by token, 16 outliers apart": Choice(outliers=16),
    "by token, smoothed by weights": Choice(smoothing=0.5),
    "16 outliers apart, LM head not rounded": Choice(outliers=16, lm_head=False),
    "16 outliers apart, int8 KV": Choice(outliers=16, kv=True),
}
# Qwen2-0.5B's shape with fewer layers and a smaller vocabulary, and a wider one.
RANDOM_SHAPES = {
    "896 wide": Shape(896, 4864, 4, 14, 2, 64, 8192),
    "2,048 wide": Shape(2048, 8192, 2, 16, 4, 128, 4096),
}
RANDOM_TOKENS = 96
BATCH = 8


@dataclass(frozen=True, slots=True)
class Quality:
    """A row of a table.

    Attributes:
        perplexity: of a text; None of random models.
        differing: share of greedy tokens that differ from float32's.
        logit_error: root mean square of the difference from float32's logits, relative to that of
            these logits; None of the engine, which returns log probabilities only.
        outliers: mean number of outliers kept apart in a row of activations.
    """

    model: str
    planting: Planting
    name: str
    perplexity: float | None
    differing: float
    logit_error: float | None = None
    outliers: float | None = None

    def show(self) -> str:
        cells = [f"{self.model}, {self.planting}", self.name]
        if self.perplexity is not None:
            cells.append(f"perplexity {self.perplexity:.4f}")
        cells.append(f"differing {self.differing:.3%}")
        if self.logit_error is not None:
            cells.append(f"logits {self.logit_error:.3%}")
        if self.outliers:
            cells.append(f"{self.outliers:.2f} outliers a row")
        return " | ".join(cells)


def measure_engine(
    model: str,
    planting: Planting,
    windows: Tensor,
    storage: Mapping[str, dict[str, Any]] = ENGINE_TYPES,
) -> Iterator[Quality]:
    """Each way of storage with its options of `LLM`, on windows of token ids [count, tokens].

    The options may name another model. Greedy tokens are compared with those of the first way.
    """
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    exact: list[int] | None = None
    for name, types in storage.items():
        with LLM(**{"model": model, "max_num_seqs": BATCH, **types}) as llm:
            outputs = llm.generate(
                sampling_params=params, prompt_token_ids=windows.tolist(), use_tqdm=False
            )
        greedy: list[int] = []
        total = 0.0
        for window, output in zip(windows.tolist(), outputs, strict=True):
            for token_id, entry in zip(window, output.prompt_logprobs or [], strict=True):
                if entry is None:
                    continue
                total += entry[token_id].logprob
                greedy.append(max(entry, key=lambda token: entry[token].logprob))
        exact = exact or greedy
        differing = sum(ours != best for ours, best in zip(greedy, exact, strict=True))
        yield _shown(
            Quality(
                "engine",
                planting,
                name,
                round(math.exp(-total / len(greedy)), 4),
                round(differing / len(greedy), 5),
            )
        )


def measure_choices(model: SmallLlama, planting: Planting, windows: Tensor) -> Iterator[Quality]:
    """Each choice on windows of token ids [count, tokens]; float32 first."""
    exact: list[Tensor] = [_logits(model, ids, None) for ids in windows.split(BATCH)]
    perplexity = _perplexity(exact, windows)
    yield _shown(Quality("emulated", planting, "float32", perplexity, 0.0, 0.0))
    for name, choice in CHOICES.items():
        rounding = Rounding(choice, model.parameters)
        logits = [_logits(model, ids, rounding) for ids in windows.split(BATCH)]
        yield _shown(_compare("emulated", planting, name, exact, logits, rounding, windows=windows))


def measure_logits(planting: Planting) -> Iterator[Quality]:
    """Each choice on random models."""
    for shape_name, shape in RANDOM_SHAPES.items():
        model = plant(random_llama(shape, seed=0), planting)
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(shape.vocab_size, (1, RANDOM_TOKENS), generator=generator)
        exact = [_logits(model, ids, None)]
        for name, choice in CHOICES.items():
            rounding = Rounding(choice, model.parameters)
            logits = [_logits(model, ids, rounding)]
            yield _shown(_compare(shape_name, planting, name, exact, logits, rounding))


def exact_perplexity(model: SmallLlama, windows: Tensor) -> float:
    """Of a model in float32."""
    return _perplexity([_logits(model, ids, None) for ids in windows.split(BATCH)], windows)


def _compare(
    model: str,
    planting: Planting,
    name: str,
    exact: list[Tensor],
    logits: list[Tensor],
    rounding: Rounding,
    *,
    windows: Tensor | None = None,
) -> Quality:
    pairs = list(zip(exact, logits, strict=True))
    wrong = sum(int((a.argmax(-1) != b.argmax(-1)).sum()) for a, b in pairs)
    tokens = sum(a.shape[:-1].numel() for a in exact)
    error = sum(float((a - b).square().sum()) for a, b in pairs)
    size = sum(float(a.square().sum()) for a in exact)
    return Quality(
        model,
        planting,
        name,
        None if windows is None else _perplexity(logits, windows),
        round(wrong / tokens, 5),
        round(math.sqrt(error / size), 5),
        round(rounding.num_outliers / max(rounding.num_rows, 1), 3),
    )


def _logits(model: SmallLlama, ids: Tensor, rounding: Rounding | None) -> Tensor:
    if rounding is None:
        return model.logits(ids, lambda _, x, weight: F.linear(x, weight), None)
    return model.logits(ids, rounding.product, round_kv if rounding.choice.kv else None)


def _perplexity(logits: list[Tensor], windows: Tensor) -> float:
    total = 0.0
    for ids, values in zip(windows.split(BATCH), logits, strict=True):
        of_next = values[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
        total += float(of_next.double().sum())
    return round(math.exp(-total / windows[:, 1:].numel()), 4)


def _shown(quality: Quality) -> Quality:
    print(quality.show(), flush=True)
    return quality
