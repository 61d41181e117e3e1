"""Models with random weights and known answers: a target, and a draft model that mostly agrees.

Each token has a successor, all in one cycle. The LM head's row for the successor is the token's
own embedding, so the successor gets the largest logit, as long as the layers hardly change the
residual stream. Their outputs are random and so small that the stream stays near the embedding.
Layers compute and cost the same as usual; only the agreement of two models is no longer random.
The draft model is wrong for a set share of the tokens, so its acceptance rate is a setting, not
a result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.gpu.inputs.llama import LLAMA_3_8B, TINY
from taco_worker.models import weight_loading
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.weight_sink import WeightSink

_LOW_ID = 16  # above the special tokens, which are never a successor
# Scale of the last products of attention and MLP.
_LAYER_SCALE = 0.01
# The layers of the draft model have 11 million weights; most bytes are read from its LM head.
DRAFT = LLAMA_3_8B | {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
TINY_DRAFT = TINY | {"num_hidden_layers": 1}


@dataclass(frozen=True, slots=True)
class Successors:
    """Attributes:
    following: int64 [vocab_size], each token's successor; special tokens follow themselves.
    """

    following: Tensor

    @classmethod
    def random(cls, vocab_size: int) -> Successors:
        """Makes one cycle through all tokens that are not special."""
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(vocab_size - _LOW_ID, generator=generator) + _LOW_ID
        following = torch.arange(vocab_size)
        following[order] = order.roll(-1)
        return cls(following)

    def wrong_for(self, share: float) -> Successors:
        """Returns a copy in which the successors of a share of the tokens are swapped."""
        generator = torch.Generator().manual_seed(1)
        count = round(share * (self.following.numel() - _LOW_ID))
        order = torch.randperm(self.following.numel() - _LOW_ID, generator=generator) + _LOW_ID
        chosen = order[:count]
        following = self.following.clone()
        following[chosen] = following[chosen].roll(1)
        return Successors(following)

    def answer(self, prompt: list[int], length: int) -> list[int]:
        """Returns the greedy continuation."""
        tokens, last = [], prompt[-1]
        for _ in range(length):
            last = int(self.following[last])
            tokens.append(last)
        return tokens

    def lm_head(self, embedding: Tensor) -> Tensor:
        """Returns [vocab_size, hidden_size] for these embeddings."""
        weight = torch.empty_like(embedding)
        weight[self.following.to(embedding.device)] = embedding
        return weight


@contextmanager
def as_dummy_weights(successors: Successors) -> Iterator[None]:
    """Makes `load_format="dummy"` use these weights meanwhile."""
    make_random = weight_loading._fill_randomly

    def fill(sink: WeightSink, plan: ModelPlan, seed: int) -> None:
        make_random(sink, plan, seed)
        generator = torch.Generator(sink.device).manual_seed(seed)
        for name, parameter in plan.parameters.items():
            shape = parameter.shape
            if name.endswith(("attn.out_proj.weight", "mlp.down_proj.weight")):
                weight = torch.empty(shape, dtype=sink.dtype, device=sink.device)
                std = _LAYER_SCALE * shape[1] ** -0.5
                sink.put(name, 0, weight.normal_(std=std, generator=generator), None)
        shape = plan.parameters["embed_tokens.weight"].shape
        embedding = torch.empty(shape, dtype=sink.dtype, device=sink.device)
        embedding.normal_(generator=generator)
        sink.put("embed_tokens.weight", 0, embedding, None)
        lm_head = successors.lm_head(embedding) * shape[1] ** -0.5
        sink.put("lm_head.weight", 0, lm_head, None)

    weight_loading._fill_randomly = fill
    try:
        yield
    finally:
        weight_loading._fill_randomly = make_random


def write_draft(folder: Path, config: dict[str, Any], successors: Successors) -> None:
    """Writes a checkpoint, because a draft model is always read from files."""
    generator = torch.Generator().manual_seed(2)
    dtype = getattr(torch, config["dtype"])
    size, inner = config["hidden_size"], config["intermediate_size"]
    kv_size = size // config["num_attention_heads"] * config["num_key_value_heads"]

    def matrix(rows: int, columns: int, scale: float) -> Tensor:
        weight = torch.randn((rows, columns), generator=generator)
        return (scale * columns**-0.5 * weight).to(dtype)

    embedding = torch.randn((config["vocab_size"], size), generator=generator).to(dtype)
    tensors = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": successors.lm_head(embedding) * size**-0.5,
        "model.norm.weight": torch.ones(size, dtype=dtype),
    }
    for layer in range(config["num_hidden_layers"]):
        tensors |= {
            f"model.layers.{layer}.{name}.weight": weight
            for name, weight in {
                "self_attn.q_proj": matrix(size, size, 1.0),
                "self_attn.k_proj": matrix(kv_size, size, 1.0),
                "self_attn.v_proj": matrix(kv_size, size, 1.0),
                "self_attn.o_proj": matrix(size, size, _LAYER_SCALE),
                "mlp.gate_proj": matrix(inner, size, 1.0),
                "mlp.up_proj": matrix(inner, size, 1.0),
                "mlp.down_proj": matrix(size, inner, _LAYER_SCALE),
                "input_layernorm": torch.ones(size, dtype=dtype),
                "post_attention_layernorm": torch.ones(size, dtype=dtype),
            }.items()
        }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
