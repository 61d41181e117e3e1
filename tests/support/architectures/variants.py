"""All variants of all architectures, by name."""

from __future__ import annotations

from support.architectures import (
    apertus,
    baichuan,
    bailing,
    bamba,
    chatglm,
    cohere,
    cwm,
    dbrx,
    decilm,
    decoders,
    ernie,
    exaone,
    falcon,
    falcon_h1,
    gemma,
    glm,
    gpt,
    gpt_relatives,
    granite_hybrid,
    helium,
    hunyuan,
    internlm,
    jais,
    kimi_linear,
    latent,
    lfm2,
    llama,
    llama_relatives,
    mimo_v2,
    minicpm,
    ministral,
    mixture,
    mpt,
    multimodal,
    nemotron_h,
    olmo,
    olmo_hybrid,
    orion,
    phi,
    phi3_small,
    qwen,
    qwen2_vl,
    qwen3_5,
    qwen3_next,
    qwen3_vl,
    shared_experts,
    sigmoid_mixtures,
    telechat2,
    text_parts,
)
from support.architectures.variant import Variant

_FAMILIES: tuple[tuple[Variant, ...], ...] = (
    apertus.VARIANTS,
    baichuan.VARIANTS,
    bailing.VARIANTS,
    bamba.VARIANTS,
    chatglm.VARIANTS,
    cohere.VARIANTS,
    cwm.VARIANTS,
    dbrx.VARIANTS,
    decilm.VARIANTS,
    decoders.VARIANTS,
    ernie.VARIANTS,
    exaone.VARIANTS,
    falcon.VARIANTS,
    falcon_h1.VARIANTS,
    gemma.VARIANTS,
    glm.VARIANTS,
    gpt.VARIANTS,
    gpt_relatives.VARIANTS,
    granite_hybrid.VARIANTS,
    helium.VARIANTS,
    hunyuan.VARIANTS,
    internlm.VARIANTS,
    jais.VARIANTS,
    kimi_linear.VARIANTS,
    latent.VARIANTS,
    lfm2.VARIANTS,
    llama.VARIANTS,
    llama_relatives.VARIANTS,
    mimo_v2.VARIANTS,
    minicpm.VARIANTS,
    ministral.VARIANTS,
    mixture.VARIANTS,
    mpt.VARIANTS,
    multimodal.VARIANTS,
    nemotron_h.VARIANTS,
    olmo.VARIANTS,
    olmo_hybrid.VARIANTS,
    orion.VARIANTS,
    phi.VARIANTS,
    phi3_small.VARIANTS,
    qwen.VARIANTS,
    qwen2_vl.VARIANTS,
    qwen3_5.VARIANTS,
    qwen3_next.VARIANTS,
    qwen3_vl.VARIANTS,
    sigmoid_mixtures.VARIANTS,
    text_parts.VARIANTS,
    shared_experts.VARIANTS,
    telechat2.VARIANTS,
)


def _by_name() -> dict[str, Variant]:
    variants: dict[str, Variant] = {}
    for variant in (variant for family in _FAMILIES for variant in family):
        if variant.name in variants:
            raise ValueError(f"two variants are named {variant.name!r}")
        variants[variant.name] = variant
    return variants


VARIANTS = _by_name()


def variants_of(architecture: str) -> list[Variant]:
    """The variants whose config.json names the class `architecture`."""
    return [variant for variant in VARIANTS.values() if variant.architecture == architecture]
