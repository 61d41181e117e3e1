"""MPT, computed by transformers' class with the slopes of the published code.

Source: attention.py of mosaicml/mpt-7b-storywriter (gen_slopes). transformers 5.23 ignores
`alibi_bias_max`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from support.architectures.native import Native, load_model
from support.architectures.variant import REMOVED, VOCAB_SIZE, Oracle, Tensors, Variant

_ATTENTION: dict[str, Any] = {
    "attn_type": "multihead_attention",
    "attn_pdrop": 0,
    "attn_impl": "torch",
    "clip_qkv": None,
    "softmax_scale": None,
    "prefix_lm": False,
    "qk_ln": False,
    "attn_uses_sequence_id": False,
    "alibi": True,
    "alibi_bias_max": 8,
}
_MPT: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"],
    "model_type": "mpt",
    "vocab_size": VOCAB_SIZE,
    "d_model": 72,
    "n_heads": 6,
    "n_layers": 2,
    "expansion_ratio": 4,
    "max_seq_len": 256,
    "learned_pos_emb": True,
    "logit_scale": None,
    "no_bias": True,
    "embedding_fraction": 1.0,
    "norm_type": "low_precision_layernorm",
    "attn_config": _ATTENTION,
}
_STORYWRITER = {**_ATTENTION, "clip_qkv": 0.5, "alibi_bias_max": 16}


@dataclass(frozen=True)
class _Sloped(Native):
    model: str = "MptForCausalLM"

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        model = load_model(self.model, config, tensors)
        greatest = config.get("attn_config", {}).get("alibi_bias_max", 8)

        def slopes(num_heads: int, length: int, *_: Any, device: Any = None) -> Tensor:
            return build_mpt_alibi_tensor(num_heads, length, greatest, device)

        model.transformer.build_mpt_alibi_tensor = slopes
        return Oracle(lambda ids: model(ids[None], use_cache=False).logits[0])


def _other(**options: Any) -> tuple[str, Any]:
    given = {**_ATTENTION, **options}
    return "attn_config", {name: one for name, one in given.items() if one is not REMOVED}


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "mpt-7b-like",
        _MPT,
        _Sloped(),
        (
            ("d_model", 96),
            ("n_heads", 4),
            ("n_heads", 9),
            ("n_layers", 3),
            ("vocab_size", 400),
            ("max_seq_len", 128),
            ("max_seq_len", REMOVED),
            ("layer_norm_epsilon", 0.3),
            ("norm_type", "layernorm"),
            ("learned_pos_emb", False),
            ("embedding_fraction", 0.5),
            ("tie_word_embeddings", False),
            ("ffn_config", {"ffn_type": "mptmlp"}),
            _other(clip_qkv=0.7),
            _other(softmax_scale=0.1),
            _other(alibi_bias_max=4),
            _other(alibi_bias_max=REMOVED),
            _other(attn_uses_sequence_id=True),
        ),
        rejected=(
            ("expansion_ratio", 3),
            ("ffn_config", {"ffn_type": "mptglu"}),
            ("ffn_config", {"ffn_act_fn": {"name": "relu"}}),
            ("ffn_config", 1),
            ("final_logit_softcapping", 30.0),
            ("logit_scale", 0.5),
            ("no_bias", False),
            ("norm_type", "rmsnorm"),
            ("attn_config", REMOVED),
            _other(alibi=False),
            _other(alibi=REMOVED),
            _other(prefix_lm=True),
            _other(qk_ln=True),
            _other(rope=True),
            _other(sliding_window_size=64),
            _other(kv_n_heads=3),
            _other(attn_type="multiquery_attention"),
        ),
    ),
    Variant(
        "mpt-7b-storywriter-like",
        {**_MPT, "attn_config": _STORYWRITER},
        _Sloped(),
        (("attn_config", {**_STORYWRITER, "clip_qkv": 0.3}),),
    ),
    Variant(
        "mpt-transformers-5-like",
        {**_MPT, "architectures": ["MptForCausalLM"]},
        _Sloped(as_saved_by_transformers=True),
        (("attn_config", REMOVED),),
    ),
)
