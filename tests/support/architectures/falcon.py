"""Falcon: 7B, 40B, 11B and RW, and the first names of the two large ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from transformers.models.bloom import modeling_bloom
from transformers.models.falcon import modeling_falcon

from support.architectures.native import Native
from support.architectures.variant import REMOVED, VOCAB_SIZE, Oracle, Tensors, Variant

_FALCON: dict[str, Any] = {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 256,
    "alibi": False,
    "bias": False,
    "multi_query": True,
    "new_decoder_architecture": False,
    "parallel_attn": True,
}
_FIELDS: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 96),
    ("num_hidden_layers", 3),
    ("num_attention_heads", 4),
    ("vocab_size", 400),
    ("max_position_embeddings", 128),
    ("layer_norm_epsilon", 0.3),
    ("alibi", True),
    ("bias", True),
    ("activation", "relu"),
    ("ffn_hidden_size", 104),
    ("rope_theta", 700.0),
    ("tie_word_embeddings", False),
)
_REFINED_WEB_NAMES = {
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_head_kv": "num_kv_heads",
}


def _from_refined_web(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the class RWForCausalLM, by today's names.

    Source: vLLM 0.6, vllm/transformers_utils/configs/falcon.py, and the first configs of
    tiiuae/falcon-7b ("RefinedWebModel") and tiiuae/falcon-40b ("RefinedWeb").
    """
    renamed = {_REFINED_WEB_NAMES.get(name, name): value for name, value in config.items()}
    is_large = config["model_type"] == "RefinedWeb"
    return {**renamed, "model_type": "falcon", "new_decoder_architecture": is_large}


def _exact_alibi(mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
    return modeling_bloom.build_alibi_tensor(mask, num_heads, dtype)


@dataclass(frozen=True)
class _Falcon:
    """Falcon with attention biases in fp32, as engines compute them.

    transformers rounds both the slopes and the biases to bfloat16, which at 40 tokens is already
    off by 0.06 at the largest slope.
    """

    oracle: ClassVar[str] = "transformers"
    native: Native

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        return self.native.random_checkpoint(config, seed)

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        oracle = self.native.load(config, tensors, max_model_len)

        def forward(ids: torch.Tensor) -> torch.Tensor:
            with patch.object(modeling_falcon, "build_alibi_tensor", _exact_alibi):
                return oracle.forward(ids)

        return Oracle(forward)


# Its eager attention adds the biases twice (transformers 5.23): to the mask, and to the scores.
_LAYOUT = _Falcon(Native("FalconForCausalLM", attention="sdpa"))
_REFINED_WEB_LAYOUT = _Falcon(Native("FalconForCausalLM", _from_refined_web, attention="sdpa"))
_RW_FIELDS = {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}
_REFINED_WEB: dict[str, Any] = {
    **{
        name: value
        for name, value in _FALCON.items()
        if name not in (*_REFINED_WEB_NAMES.values(), "new_decoder_architecture")
    },
    "architectures": ["RWForCausalLM"],
    "n_layer": 2,
    "n_head": 6,
    "apply_residual_connection_post_layernorm": False,
}

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "falcon-7b-like",
        _FALCON,
        _LAYOUT,
        (
            *_FIELDS,
            ("multi_query", False),
            ("parallel_attn", False),
            ("new_decoder_architecture", True),
            ("new_decoder_architecture", REMOVED),
        ),
        rejected=(("partial_rotary_factor", 0.5),),
    ),
    Variant(
        "falcon-40b-like",
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
        _LAYOUT,
        (*_FIELDS, ("num_kv_heads", 3), ("num_kv_heads", 1), ("num_ln_in_parallel_attn", 1)),
    ),
    Variant(
        "falcon-11b-like",
        {
            **_FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": 104,
            "tie_word_embeddings": False,
        },
        _LAYOUT,
        (("activation", "gelu_new"),),
    ),
    Variant(
        "falcon-rw-like",
        {**_FALCON, **_RW_FIELDS},
        _LAYOUT,
        (*_FIELDS, ("alibi", False), ("multi_query", True), ("parallel_attn", True)),
    ),
    Variant(
        "refined-web-7b-like",
        {**_REFINED_WEB, "model_type": "RefinedWebModel"},
        _REFINED_WEB_LAYOUT,
        (
            ("n_layer", 3),
            ("n_head", 4),
            ("bias", True),
            ("layer_norm_epsilon", 0.3),
        ),
        rejected=(("apply_residual_connection_post_layernorm", True),),
    ),
    Variant(
        "refined-web-40b-like",
        {**_REFINED_WEB, "model_type": "RefinedWeb", "n_head_kv": 2},
        _REFINED_WEB_LAYOUT,
        (("n_head_kv", 3),),
    ),
)
