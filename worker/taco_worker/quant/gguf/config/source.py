"""What the fields of a config.json are made of, and those that most architectures share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taco_worker.quant.gguf.config.metadata import Metadata
from taco_worker.quant.gguf.config.rope_settings import rope_settings
from taco_worker.quant.gguf.header import TensorInfo

Fields = dict[str, Any]


class ConfigSource:
    """What the fields of an architecture are made of.

    Attributes:
        tensors: of all files, by name.
        rope_factors: of the tensors that hold factors of frequencies, by name.
    """

    def __init__(
        self,
        metadata: Metadata,
        tensors: Mapping[str, TensorInfo],
        rope_factors: Mapping[str, list[float]],
    ) -> None:
        self.metadata = metadata
        self.tensors = tensors
        self.rope_factors = rope_factors

    @property
    def num_heads(self) -> int:
        return self.metadata.size("attention.head_count")

    @property
    def num_kv_heads(self) -> int:
        return self.metadata.size("attention.head_count_kv", self.num_heads)

    @property
    def num_layers(self) -> int:
        """Without those that only predict further tokens."""
        return num_layers(self.metadata)

    @property
    def hidden_size(self) -> int:
        return self.metadata.size("embedding_length")

    @property
    def head_dim(self) -> int:
        default = self.hidden_size // self.num_heads
        size = self.metadata.size("attention.key_length", default or None)
        other = self.metadata.size("attention.value_length", size)
        if other != size:
            raise ValueError(f"keys of {size} and values of {other} columns are not supported")
        return size

    @property
    def partial_rotary_factor(self) -> float:
        return self.metadata.size("rope.dimension_count", self.head_dim) / self.head_dim

    def has(self, name: str) -> bool:
        """Whether the first layer has a tensor."""
        return f"blk.0.{name}" in self.tensors

    def some_layer_has(self, name: str) -> bool:
        """Whether any layer has a tensor."""
        return any(f"blk.{layer}.{name}" in self.tensors for layer in range(self.num_layers))

    def rows(self, name: str) -> int:
        """Rows of a matrix of the first layer that has it, or of one of its experts."""
        names = (f"blk.{layer}.{name}" for layer in range(self.num_layers))
        info = next((self.tensors[one] for one in names if one in self.tensors), None)
        if info is None or len(info.shape) < 2:
            raise ValueError(f"it has no matrix 'blk.N.{name}'")
        return info.shape[-2]


def num_layers(metadata: Metadata) -> int:
    """The layers that a text passes: a file counts those that predict further tokens too."""
    count = metadata.size("block_count")
    extra = metadata.optional_size("nextn_predict_layers") or 0
    if extra >= count:
        raise ValueError(
            f"{metadata.architecture}.nextn_predict_layers is {extra} of {count} layers"
        )
    return count - extra


def decoder(source: ConfigSource, architecture: str, model_type: str, **changes: Any) -> Fields:
    """The fields of Llama and its relatives."""
    metadata = source.metadata
    fields: Fields = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": source.hidden_size,
        "num_hidden_layers": source.num_layers,
        "num_attention_heads": source.num_heads,
        "head_dim": source.head_dim,
        "max_position_embeddings": metadata.size("context_length"),
        **rope_settings(metadata, source.rope_factors),
    }
    if "num_key_value_heads" not in changes:
        fields["num_key_value_heads"] = source.num_kv_heads
    if metadata.get("feed_forward_length") is not None:
        fields["intermediate_size"] = metadata.size("feed_forward_length")
    if metadata.get("attention.layer_norm_rms_epsilon") is not None:
        fields["rms_norm_eps"] = metadata.number("attention.layer_norm_rms_epsilon")
    return {**fields, **changes}


def layer_norm_epsilon(source: ConfigSource) -> float:
    return source.metadata.number("attention.layer_norm_epsilon")


def experts(source: ConfigSource, num_experts: str = "num_experts") -> Fields:
    return {
        num_experts: source.metadata.size("expert_count"),
        "num_experts_per_tok": source.metadata.size("expert_used_count"),
    }


def layer_types(source: ConfigSource, period: int) -> list[str]:
    """Every layer has a window, except each `period`-th one, unless the file says which."""
    num_layers = source.num_layers
    given = source.metadata.get("attention.sliding_window_pattern")
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        period = given
    has_window = [bool((layer + 1) % period) for layer in range(num_layers)]
    if isinstance(given, list):
        if len(given) != num_layers:
            raise ValueError(f"sliding_window_pattern has {len(given)} items, not {num_layers}")
        has_window = [bool(one) for one in given]
    return ["sliding_attention" if one else "full_attention" for one in has_window]
