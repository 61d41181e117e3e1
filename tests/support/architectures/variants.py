"""All variants of all architectures, by name."""

from __future__ import annotations

from support.architectures import (
    baichuan,
    chatglm,
    cohere,
    decoders,
    falcon,
    gemma,
    glm,
    gpt,
    internlm,
    latent,
    llama,
    ministral,
    mixture,
    olmo,
    phi,
    phi3_small,
    qwen,
    qwen2_vl,
)
from support.architectures.variant import Variant

_FAMILIES: tuple[tuple[Variant, ...], ...] = (
    baichuan.VARIANTS,
    chatglm.VARIANTS,
    cohere.VARIANTS,
    decoders.VARIANTS,
    falcon.VARIANTS,
    gemma.VARIANTS,
    glm.VARIANTS,
    gpt.VARIANTS,
    internlm.VARIANTS,
    latent.VARIANTS,
    llama.VARIANTS,
    ministral.VARIANTS,
    mixture.VARIANTS,
    olmo.VARIANTS,
    phi.VARIANTS,
    phi3_small.VARIANTS,
    qwen.VARIANTS,
    qwen2_vl.VARIANTS,
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
