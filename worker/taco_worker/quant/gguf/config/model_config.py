"""Makes the fields of a config.json from the metadata of GGUF files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from taco_worker.quant.gguf.blocks.block_types import BlockType
from taco_worker.quant.gguf.config.architectures import ARCHITECTURES
from taco_worker.quant.gguf.config.metadata import Metadata
from taco_worker.quant.gguf.config.source import ConfigSource, Fields
from taco_worker.quant.gguf.header import TensorInfo

_LAYER = re.compile(r"blk\.(\d{1,4})\.")
_EXPERT = re.compile(r"\.ffn_(?:gate|up|down)\.(\d{1,4})\.")


def hf_config(
    metadata: Metadata,
    tensors: Mapping[str, TensorInfo],
    rope_factors: Mapping[str, list[float]],
) -> Fields:
    """The fields of config.json, without the ids of special tokens.

    Args:
        tensors: of all files, by name.
        rope_factors: of the tensors with factors of frequencies, by name.

    Raises:
        ValueError: the architecture is not supported, or a key is missing or invalid.
    """
    source = ConfigSource(metadata, tensors, rope_factors)
    if metadata.architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ValueError(
            f"the architecture {metadata.architecture!r} is not supported; known: {known}"
        )
    if metadata.values.get("general.type") not in (None, "model"):
        raise ValueError(f"it holds {metadata.values['general.type']!r:.50}, not a model")
    if metadata.get("attention.causal") is False:
        raise ValueError("it is a model for embeddings: its attention is not causal")
    embeddings = tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise ValueError("it has no matrix 'token_embd.weight'")
    _check_counts(source, embeddings)
    fields = ARCHITECTURES[metadata.architecture](source)
    common: Fields = {
        "vocab_size": embeddings.shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "dtype": _dtype(tensors),
        "quantization_config": {"quant_method": "gguf"},
    }
    return {**fields, **common}


def _check_counts(source: ConfigSource, embeddings: TensorInfo) -> None:
    """False counts would make plans of any size.

    Raises:
        ValueError: the tensors contradict a count.
    """
    metadata = source.metadata
    name = metadata.architecture
    layers = {match[1] for one in source.tensors if (match := _LAYER.match(one))}
    if source.num_layers > len(layers) + _layers_without_blocks(metadata):
        raise ValueError(
            f"{name}.block_count is {source.num_layers}, and it has tensors of {len(layers)} layers"
        )
    if embeddings.shape[1] != source.hidden_size:
        raise ValueError(
            f"{name}.embedding_length is {source.hidden_size}, and 'token_embd.weight' has "
            f"{embeddings.shape[1]} columns"
        )
    num_heads = metadata.largest("attention.head_count")
    num_kv_heads = metadata.largest("attention.head_count_kv", num_heads)
    if max(num_heads, num_kv_heads) > source.hidden_size:
        raise ValueError(
            f"{name}.attention.head_count is {num_heads}, and head_count_kv "
            f"{num_kv_heads}: more than {source.hidden_size} columns"
        )
    count = metadata.optional_size("expert_count") or 0
    stored = max((_experts_of(one) for one in source.tensors.values()), default=0)
    if count > stored:
        raise ValueError(f"{name}.expert_count is {count}, and it has tensors of {stored}")


def _layers_without_blocks(metadata: Metadata) -> int:
    """The layers that have neither attention nor an MLP, as the largest Nemotron-NAS has."""
    heads, sizes = metadata.get("attention.head_count"), metadata.get("feed_forward_length")
    if not isinstance(heads, list) or not isinstance(sizes, list):
        return 0
    return sum(one == other == 0 for one, other in zip(heads, sizes, strict=False))


def _experts_of(info: TensorInfo) -> int:
    """The experts that a tensor shows to be there."""
    if match := _EXPERT.search(info.name):
        return int(match[1]) + 1
    return info.shape[0] if "_exps." in info.name and len(info.shape) > 1 else 0


def _dtype(tensors: Mapping[str, TensorInfo]) -> str:
    """Of activations: the type of the matrices, or bfloat16 if they are quantized."""
    matrices = [one.type for one in tensors.values() if len(one.shape) > 1]
    if any(isinstance(kind, BlockType) for kind in matrices):
        return "bfloat16"
    names = {kind.name for kind in matrices}
    if "F16" in names:
        return "float16"
    return "bfloat16" if "BF16" in names else "float32"
