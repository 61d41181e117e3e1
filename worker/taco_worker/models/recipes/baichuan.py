"""Baichuan: 7B with rotary positions, 13B with ALiBi; version 2 normalizes its LM head.

The configs do not name these options: see `_has_rope` and `_VOCAB_SIZE_OF_VERSION_2`.
"""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import alibi_slopes
from taco_worker.models.plan.decoder_block import ATTENTION, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import NormalizeRows

# Version 1 has 64,000 tokens. vLLM tells the versions apart in the same way.
_VOCAB_SIZE_OF_VERSION_2 = 125_696


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("tie_word_embeddings", False)
    length = fields.size("max_position_embeddings", "model_max_length")
    spec = llama_spec(ConfigFields({**fields.values, "max_position_embeddings": length}))
    qkv = spec.attention.heads.packed(f"{ATTENTION}.W_pack")
    spec = replace(spec, attention=replace(spec.attention, qkv=qkv))
    if not _has_rope(fields, architecture):
        slopes = alibi_slopes(spec.attention.heads.num_heads)
        spec = replace(spec, rotary=None, attention=replace(spec.attention, alibi=slopes))
    if spec.sizes.vocab_size == _VOCAB_SIZE_OF_VERSION_2:
        spec = replace(spec, head=replace(spec.head, views=(NormalizeRows(),)))
    return decoder(architecture, spec)


def _has_rope(fields: ConfigFields, architecture: str) -> bool:
    """The class of the first 7B model has no ALiBi; configs of 13B models have model_max_length."""
    is_first = architecture == "BaiChuanForCausalLM"
    return is_first or fields.get("max_position_embeddings") is not None
