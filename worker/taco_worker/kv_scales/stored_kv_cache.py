"""Which KV cache a quantized checkpoint was made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Names of float8 that `--kv-cache-dtype` takes, and torch's names of them.
FLOAT8_NAMES = {
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


@dataclass(frozen=True, slots=True)
class StoredKVCache:
    """What the settings of a quantized checkpoint say of the KV cache.

    Attributes:
        dtype: as `--kv-cache-dtype` names it; None: TACO has none of that kind, and the KV cache
            keeps the dtype of the model.
        has_entry_scales: the checkpoint's scales are those of all keys, or values, of a layer.
        description: of the settings, for the log.
        static_strategy: of scales that the checkpoint stores, if there is not one for all keys, or
            values, of a layer.
    """

    dtype: str | None
    has_entry_scales: bool
    description: str
    static_strategy: str | None = None

    def check_scales(self) -> None:
        """Raises ValueError if a float8 KV cache cannot have the checkpoint's scales."""
        if self.static_strategy is not None:
            raise ValueError(
                f"the checkpoint's kv_cache_scheme has static scales of the strategy "
                f"{self.static_strategy!r:.100}, which is not supported (only 'tensor' is): use "
                "--kv-cache-dtype int8 or bfloat16, or --quantization-param-path"
            )


def stored_kv_cache(settings: Mapping[str, Any] | None) -> StoredKVCache | None:
    """Reads `kv_cache_scheme` (compressed-tensors, ModelOpt) or `kv_cache_quant_algo` (ModelOpt).

    Args:
        settings: `quantization_config`, those of hf_quant_config.json, or a converted config.json.

    Returns:
        None if the checkpoint does not ask for a KV cache.

    Raises:
        ValueError: a field has the wrong type.
    """
    settings = settings or {}
    scheme = settings.get("kv_cache_scheme")
    if scheme is not None:
        if not isinstance(scheme, Mapping):
            raise ValueError(f"kv_cache_scheme must be an object, not {scheme!r:.100}")
        is_float8 = scheme.get("num_bits") == 8 and scheme.get("type") == "float"
        strategy = scheme.get("strategy") or "tensor"
        if not isinstance(strategy, str):
            raise ValueError(f"kv_cache_scheme.strategy must be a name, not {strategy!r:.100}")
        is_static = not scheme.get("dynamic")
        return StoredKVCache(
            "fp8" if is_float8 else None,
            is_static and strategy == "tensor",
            f"kv_cache_scheme {dict(scheme)!r:.200}",
            strategy if is_static and strategy != "tensor" else None,
        )
    algorithm = settings.get("kv_cache_quant_algo")
    if algorithm is None:
        return None
    if not isinstance(algorithm, str):
        raise ValueError(f"kv_cache_quant_algo must be a name, not {algorithm!r:.100}")
    dtype = "fp8" if algorithm.upper() == "FP8" else None
    return StoredKVCache(dtype, True, f"kv_cache_quant_algo {algorithm!r:.100}")


def wanted_kv_cache_dtype(wanted: str, stored: StoredKVCache | None) -> str:
    """`--kv-cache-dtype WANTED`, where auto is the checkpoint's, if it asks for one."""
    if wanted == "auto" and stored is not None and stored.dtype is not None:
        return stored.dtype
    return wanted
