"""Dense models that differ from Llama by a few options: Seed-OSS, Arcee, Jais 2, nanochat."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, LLAMA_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_SEED_OSS: dict[str, Any] = {
    "architectures": ["SeedOssForCausalLM"],
    "model_type": "seed_oss",
    **LLAMA,
    "head_dim": 20,
    "attention_bias": True,
    "attention_out_bias": False,
    "mlp_bias": False,
    "residual_dropout": 0.1,
}
_ARCEE: dict[str, Any] = {
    "architectures": ["ArceeForCausalLM"],
    "model_type": "arcee",
    **LLAMA,
    "hidden_act": "relu2",
    "attention_bias": False,
    "mlp_bias": False,
    "pad_token_id": None,
}
_JAIS_2: dict[str, Any] = {
    "architectures": ["Jais2ForCausalLM"],
    "model_type": "jais2",
    **{name: value for name, value in LLAMA.items() if name != "rms_norm_eps"},
    "hidden_act": "relu2",
    "layer_norm_eps": 1e-5,
    "attention_bias": True,
    "mlp_bias": True,
    "pad_token_id": None,
}
_NANOCHAT: dict[str, Any] = {
    "architectures": ["NanoChatForCausalLM"],
    "model_type": "nanochat",
    **LLAMA,
    "hidden_act": "relu2",
    "attention_bias": False,
    "final_logit_softcapping": 2.5,
}
_OTHER_FIELDS = tuple(field for field in LLAMA_FIELDS if field[0] != "rms_norm_eps")

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "seed-oss-like",
        _SEED_OSS,
        Native("SeedOssForCausalLM"),
        fields=(
            *LLAMA_FIELDS,
            ("head_dim", 16),
            ("attention_bias", False),
            ("attention_bias", REMOVED),
            ("attention_out_bias", True),
            ("attention_out_bias", REMOVED),
            ("mlp_bias", True),
            ("mlp_bias", REMOVED),
            ("residual_dropout", 0.5),
        ),
        rejected=(("partial_rotary_factor", 0.5),),
    ),
    Variant(
        "seed-oss-transformers-5-like",
        {**_SEED_OSS, "attention_out_bias": True, "tie_word_embeddings": True},
        Native("SeedOssForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "arcee-like",
        _ARCEE,
        Native("ArceeForCausalLM"),
        fields=(
            *LLAMA_FIELDS,
            ("hidden_act", REMOVED),
            ("rms_norm_eps", REMOVED),
            ("num_key_value_heads", REMOVED),
            ("head_dim", 20),
            ("attention_bias", True),
            ("attention_bias", REMOVED),
            ("mlp_bias", True),
            ("mlp_bias", REMOVED),
        ),
        rejected=(("partial_rotary_factor", 0.5),),
    ),
    Variant(
        "arcee-transformers-5-like",
        {**_ARCEE, "attention_bias": True, "mlp_bias": True, "head_dim": 20},
        Native("ArceeForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "jais-2-like",
        _JAIS_2,
        Native("Jais2ForCausalLM"),
        fields=(
            *_OTHER_FIELDS,
            ("hidden_act", REMOVED),
            ("layer_norm_eps", 0.3),
            ("layer_norm_eps", REMOVED),
            ("num_key_value_heads", REMOVED),
            ("head_dim", 20),
            ("attention_bias", False),
            ("attention_bias", REMOVED),
            ("mlp_bias", False),
            ("mlp_bias", REMOVED),
        ),
        rejected=(("partial_rotary_factor", 0.5),),
    ),
    Variant(
        "jais-2-transformers-5-like",
        {**_JAIS_2, "head_dim": 20},
        Native("Jais2ForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "nanochat-like",
        _NANOCHAT,
        Native("NanoChatForCausalLM"),
        fields=(
            *LLAMA_FIELDS,
            ("hidden_act", REMOVED),
            ("rms_norm_eps", REMOVED),
            ("num_key_value_heads", REMOVED),
            ("head_dim", 20),
            ("attention_bias", True),
            ("attention_bias", REMOVED),
            ("final_logit_softcapping", None),
            ("final_logit_softcapping", REMOVED),
        ),
        rejected=(("partial_rotary_factor", 0.5),),
    ),
    Variant(
        "nanochat-transformers-5-like",
        {**_NANOCHAT, "attention_bias": True},
        Native("NanoChatForCausalLM", as_saved_by_transformers=True),
    ),
)
