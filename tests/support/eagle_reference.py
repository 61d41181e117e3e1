"""EAGLE heads computed from scratch for every draft, without caches, batches or levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, DRAFT_VOCAB = 64, 96, 4, 2, 16, 384, 120
NUM_TARGET_LAYERS = 7
EPS = 1e-5
THETA = 10_000.0

_LLAMA = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "hidden_act": "silu",
    "vocab_size": VOCAB,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "eagle": {**_LLAMA, "architectures": ["LlamaForCausalLM"], "bias": True},
    "eagle3": {
        **_LLAMA,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCAB,
    },
}
FEATURE_LAYERS = {"eagle": 1, "eagle3": 3}


def eagle_shapes(kind: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the published checkpoints, without the whole numbers of EAGLE 3."""
    layer, width = ("layers.0", HIDDEN) if kind == "eagle" else ("midlayer", 2 * HIDDEN)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, HIDDEN * (2 if kind == "eagle" else 3)),
        f"{layer}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, width),
        f"{layer}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, width),
        f"{layer}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, width),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
    }
    if kind == "eagle":
        return {**shapes, "fc.bias": (HIDDEN,), "embed_tokens.weight": (VOCAB, HIDDEN)}
    return {
        **shapes,
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    }


def vocabulary_maps(seed: int = 0) -> dict[str, Tensor]:
    """d2t: what is added to a draft's number to get its token id; t2d: which tokens have one."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
    has_number = torch.zeros(VOCAB, dtype=torch.bool)
    has_number[chosen] = True
    return {"d2t": chosen - torch.arange(DRAFT_VOCAB), "t2d": has_number}


@dataclass(frozen=True)
class EagleReference:
    """
    Attributes:
        tensors: the head's, by published name.
        embeddings, lm_head: the target's, [VOCAB, HIDDEN].
    """

    kind: str
    tensors: Mapping[str, Tensor]
    embeddings: Tensor
    lm_head: Tensor

    def log_chances(
        self,
        next_ids: Sequence[int],
        hidden: Tensor,
        drafts: Sequence[int],
        first_position: int = 0,
    ) -> Tensor:
        """Of each token to come after the drafts, [VOCAB]; -inf where it has no number.

        Args:
            next_ids, hidden: of the computed tokens, from `first_position` on.
            drafts: that follow the last of `next_ids`.
        """
        features = hidden if self.kind == "eagle" else hidden @ self.tensors["fc.weight"].T
        tokens = list(next_ids)
        outputs = self._layer(tokens, features, first_position)
        for draft in drafts:
            tokens.append(draft)
            features = torch.cat([features, outputs[-1:]])
            outputs = self._layer(tokens, features, first_position)
        return self._log_chances_of(outputs[-1])

    def _log_chances_of(self, output: Tensor) -> Tensor:
        if self.kind == "eagle":
            return (self.lm_head @ output).log_softmax(-1)
        normed = _norm(output, self.tensors["norm.weight"])
        chances = (self.tensors["lm_head.weight"] @ normed).log_softmax(-1)
        spread = torch.full((VOCAB,), -math.inf)
        spread[torch.arange(DRAFT_VOCAB) + self.tensors["d2t"]] = chances
        return spread

    def _layer(self, tokens: Sequence[int], features: Tensor, first_position: int) -> Tensor:
        """All pairs of a token and the feature before it through the layer, [n, HIDDEN]."""
        embedded = self.embeddings[torch.tensor(tokens)]
        if self.kind == "eagle":
            prefix = "layers.0"
            both = torch.cat([embedded, features], dim=1)
            x = residual = both @ self.tensors["fc.weight"].T + self.tensors["fc.bias"]
        else:
            prefix = "midlayer"
            normed = _norm(embedded, self.tensors["midlayer.input_layernorm.weight"])
            hidden = _norm(features, self.tensors["midlayer.hidden_norm.weight"])
            x, residual = torch.cat([normed, hidden], dim=1), features
        positions = torch.arange(first_position, first_position + len(tokens))

        def project(name: str) -> Tensor:
            return (x @ self.tensors[f"{prefix}.self_attn.{name}_proj.weight"].T).unflatten(
                1, (-1, HEAD_DIM)
            )

        query, key = _rotate(project("q"), positions), _rotate(project("k"), positions)
        value = project("v")
        is_future = torch.ones(len(tokens), len(tokens)).triu(1).bool()
        heads = []
        for head in range(HEADS):
            shared = head * KV_HEADS // HEADS
            scores = query[:, head] @ key[:, shared].T / math.sqrt(HEAD_DIM)
            heads.append(scores.masked_fill(is_future, -math.inf).softmax(-1) @ value[:, shared])
        x = residual + torch.cat(heads, dim=1) @ self.tensors[f"{prefix}.self_attn.o_proj.weight"].T
        normed = _norm(x, self.tensors[f"{prefix}.post_attention_layernorm.weight"])
        gate = normed @ self.tensors[f"{prefix}.mlp.gate_proj.weight"].T
        up = normed @ self.tensors[f"{prefix}.mlp.up_proj.weight"].T
        return x + (gate * gate.sigmoid() * up) @ self.tensors[f"{prefix}.mlp.down_proj.weight"].T


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _rotate(heads: Tensor, positions: Tensor) -> Tensor:
    """Pairs (i, i + HEAD_DIM / 2) as complex numbers."""
    half = HEAD_DIM // 2
    angles = positions[:, None] * THETA ** (-torch.arange(half) / half)
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    ).unsqueeze(1)
    return torch.cat([turned.real, turned.imag], dim=-1)
