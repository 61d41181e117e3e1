"""MiniCPM 1, 2 and 4: Llama with factors on embeddings, blocks and logits."""

from __future__ import annotations

import math
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("num_experts", 0)
    # MiniCPM 4.1 reads a part of the blocks in long sequences.
    fields.only("sparse_config", None)
    bias = fields.flag("attention_bias", default=False)
    spec = llama_spec(fields, qkv_bias=bias, out_bias=bias, tied=True)
    scale = hidden_scale(fields)
    spec = replace(spec, embedding_scale=fields.positive("scale_emb"))
    spec = replace(spec, residual_scale=block_scale(fields), head=replace(spec.head, scale=scale))
    return decoder(architecture, spec)


def block_scale(fields: ConfigFields) -> float:
    """The factor on the output of each block."""
    return fields.positive("scale_depth") / math.sqrt(fields.size("num_hidden_layers"))


def hidden_scale(fields: ConfigFields) -> float:
    """The factor on the hidden states, and so on the logits."""
    return fields.size("dim_model_base") / fields.size("hidden_size")
