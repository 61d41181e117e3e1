"""Reads rotary position (RoPE) settings from a config.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from taco_worker.models.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    RopeScaling,
    RotaryConfig,
    YarnScaling,
    yarn_amplitude,
)

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional", "mrope")
_AXES = 3  # of M-RoPE: time, height, width
# Names of older configs, and of models whose code is in their repository.
_THETA_FIELDS = ("rope_theta", "rotary_emb_base", "rope_embedding_base")
_PARTIAL_FIELDS = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rope_percent")
# Settings that have an effect without a type.
_UNSCALED_FIELDS = {*_THETA_FIELDS, *_PARTIAL_FIELDS, "mrope_section", "mrope_interleaved"}


def parse_rotary(
    hf_config: Mapping[str, Any],
    *,
    default_theta: float = 10_000.0,
    default_partial: float = 1.0,
) -> RotaryConfig:
    """Read `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

    Args:
        default_theta, default_partial: theta and partial_rotary_factor of configs without them.

    Raises:
        ValueError: the kind of scaling is missing or unknown, one of its numbers is missing, or
            settings differ by layer type.
    """
    parameters = hf_config.get("rope_parameters") or {}
    if is_by_layer_type(parameters):
        raise ValueError(
            f"rope_parameters by layer type ({', '.join(parameters)}) are not supported by this "
            "architecture"
        )
    given = parameters or hf_config.get("rope_scaling") or {}
    return _parse(given, hf_config, default_theta, default_partial)


def parse_layer_rotary(
    hf_config: Mapping[str, Any],
    layer_types: Iterable[str],
    *,
    unscaled: Mapping[str, float | None] | None = None,
    default_theta: float = 10_000.0,
    default_partial: float = 1.0,
) -> dict[str, RotaryConfig | None]:
    """Rotary settings per layer type: of `rope_parameters` by layer type, else the same for all.

    Args:
        layer_types: as in the config's `layer_types`, such as "full_attention".
        unscaled: theta of layer types without scaling, in configs that do not give settings by
            layer type (Gemma 3's and OLMo 3's sliding layers); None: the other layers' theta.

    Returns:
        Settings of each layer type. None: the layers have no rotary positions.

    Raises:
        ValueError: as `parse_rotary`.
    """
    parameters = hf_config.get("rope_parameters") or {}
    by_type = parameters if is_by_layer_type(parameters) else {}
    flat = (hf_config.get("rope_scaling") if by_type else parameters) or {}
    flat = flat or hf_config.get("rope_scaling") or {}
    unscaled = unscaled or {}

    def settings(layer_type: str) -> RotaryConfig | None:
        if layer_type in by_type:
            own = by_type[layer_type]
            if own is None:
                return None
            if not isinstance(own, Mapping):
                raise ValueError(f"rope_parameters of {layer_type} must be an object, not {own!r}")
            return _parse(own, hf_config, default_theta, default_partial)
        shared = _parse(flat, hf_config, default_theta, default_partial)
        if layer_type not in unscaled:
            return shared
        theta = unscaled[layer_type]
        return RotaryConfig(
            shared.theta if theta is None else _positive("rope_theta", theta),
            None,
            shared.partial_rotary_factor,
        )

    return {layer_type: settings(layer_type) for layer_type in layer_types}


def check_rope_names(hf_config: Mapping[str, Any]) -> None:
    """Refuse a config whose `rope_scaling` and `rope_parameters` contradict each other.

    transformers prefers the first and other software the second, so neither is what was meant.

    Raises:
        ValueError: they differ; the message names the settings.
    """
    scaling, parameters = hf_config.get("rope_scaling"), hf_config.get("rope_parameters")
    if not scaling or not parameters:
        return
    if is_by_layer_type(parameters):
        # Configs with `rope_scaling` mean the layers that attend to all tokens.
        parameters = parameters.get("full_attention")
        parameters = parameters if isinstance(parameters, Mapping) else {}
    differing = _differing(scaling, parameters)
    for fields in (_THETA_FIELDS, _PARTIAL_FIELDS):  # old configs have them beside the settings
        values = [_first_given(one, hf_config, fields, None) for one in (scaling, parameters)]
        if None not in values and values[0] != values[1]:
            differing.append(fields[0])
    if differing:
        raise ValueError(
            f"rope_scaling and rope_parameters differ in {', '.join(differing):.200}: remove one "
            "of them, or disable one with --hf-overrides '{\"rope_scaling\": null}'"
        )


def check_rope_type(given: Mapping[str, Any]) -> None:
    """Refuse settings without a type, which other software rejects or ignores.

    Raises:
        ValueError: there is neither `rope_type` nor `type`.
    """
    if not given.get("rope_type") and not given.get("type"):
        raise ValueError(
            f"rope_scaling needs a rope_type ({', '.join(_KINDS)}), got only "
            f"{', '.join(map(repr, given)):.200}"
        )


def _differing(*both: Mapping[str, Any]) -> list[str]:
    """The settings that are not equal, without those that configs may have beside them."""
    outside = {"type", "rope_type", *_THETA_FIELDS, *_PARTIAL_FIELDS}
    first, second = (
        {name: value for name, value in one.items() if value is not None and name not in outside}
        | {"rope_type": _kind(one)}
        for one in both
    )
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def is_by_layer_type(parameters: Mapping[str, Any]) -> bool:
    """Whether `rope_parameters` has settings per layer type, as for Gemma 3."""
    return any(
        isinstance(value, Mapping) or name.endswith("_attention")
        for name, value in parameters.items()
    )


def _parse(
    given: Mapping[str, Any],
    hf_config: Mapping[str, Any],
    default_theta: float,
    default_partial: float,
) -> RotaryConfig:
    theta = _positive("rope_theta", _first_given(given, hf_config, _THETA_FIELDS, default_theta))
    partial = _positive(
        "partial_rotary_factor", _first_given(given, hf_config, _PARTIAL_FIELDS, default_partial)
    )
    if partial > 1:
        raise ValueError(f"partial_rotary_factor must be at most 1, not {partial}")
    if given.get("mrope_interleaved"):
        raise ValueError("mrope_interleaved is not supported, only consecutive sections")
    sections = given.get("mrope_section") or ()
    if not isinstance(sections, list | tuple):
        raise ValueError(f"mrope_section must be {_AXES} integers, not {sections!r:.100}")
    sections = tuple(sections)
    if sections and (len(sections) != _AXES or not all(map(_is_size, sections))):
        raise ValueError(f"mrope_section must be {_AXES} integers, not {list(sections)}")
    scaling = _parse_scaling(given, hf_config, partial)
    if isinstance(scaling, YarnScaling) and theta <= 1:
        raise ValueError(f"rope_theta must be above 1 with yarn, not {theta}")
    # These frequencies are spaced over the whole head, most of which turns by the angle 0.
    whole_head = isinstance(scaling, ProportionalScaling)
    return RotaryConfig(theta, scaling, 1.0 if whole_head else partial, sections)


def _first_given(
    given: Mapping[str, Any],
    hf_config: Mapping[str, Any],
    names: tuple[str, ...],
    default: float | None,
) -> Any:
    """The first of the named fields that is not null, in the rope settings or in the config."""
    fields = (fields.get(name) for fields in (given, hf_config) for name in names)
    return next((value for value in fields if value is not None), default)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, not {value!r}")
    return float(value)


def _kind(given: Mapping[str, Any]) -> Any:
    """The kind of scaling, by its name in new configs."""
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind in ("su", "yarn") and "short_factor" in given:
        return "longrope"  # as early Phi-3 checkpoints call it
    return "default" if kind == "mrope" else kind  # sections have a setting


def _parse_scaling(
    given: Mapping[str, Any], hf_config: Mapping[str, Any], partial: float
) -> RopeScaling | None:
    if {name for name, value in given.items() if value is not None} - _UNSCALED_FIELDS:
        check_rope_type(given)
    kind = _kind(given)

    def number(name: str, default: float | None = None) -> float:
        value = given.get(name)
        if value is None and default is not None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not 0 < value < math.inf:
            raise ValueError(f"rope scaling {kind!r} needs a positive {name!r}, not {value!r}")
        return float(value)

    def numbers(name: str) -> tuple[float, ...]:
        values = given.get(name)
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"rope scaling {kind!r} needs a list {name!r}, not {values!r}")
        return tuple(_positive(name, value) for value in values)

    def number_or_none(name: str) -> float:
        """Configs write 0 and null for "none"."""
        return number(name) if given.get(name) else 0.0

    def original_length() -> int:
        """Configs of Phi-3 give it outside of the rope settings."""
        name = "original_max_position_embeddings"
        lengths = (fields.get(name) for fields in (hf_config, given))
        length = next((length for length in lengths if length is not None), None)
        if length is None:
            length = hf_config["max_position_embeddings"]
        is_number = isinstance(length, int | float) and not isinstance(length, bool)
        if not is_number or not 2 <= length < math.inf:
            raise ValueError(f"{name} must be a number of tokens, 2 or more, not {length!r}")
        return int(length)

    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(number("factor"))
        case "dynamic":
            # Unlike the others, dynamic scaling starts at the config's length.
            return DynamicScaling(number("factor"), int(hf_config["max_position_embeddings"]))
        case "llama3":
            low, high = number("low_freq_factor"), number("high_freq_factor")
            if low >= high:
                raise ValueError(f"rope scaling needs low_freq_factor {low} < high {high}")
            return Llama3Scaling(number("factor"), low, high, original_length())
        case "yarn":
            length = original_length()
            factor = number("factor", hf_config["max_position_embeddings"] / length)
            mscale, mscale_all_dim = number_or_none("mscale"), number_or_none("mscale_all_dim")
            amplitude = yarn_amplitude(factor)
            if mscale and mscale_all_dim:
                amplitude = yarn_amplitude(factor, mscale) / yarn_amplitude(factor, mscale_all_dim)
            return YarnScaling(
                factor=factor,
                beta_fast=number_or_none("beta_fast") or 32.0,
                beta_slow=number_or_none("beta_slow") or 1.0,
                attention_factor=number("attention_factor", amplitude),
                truncate=bool(given.get("truncate", True)),
                original_max_position_embeddings=length,
                mscale_all_dim=mscale_all_dim,
            )
        case "longrope":
            length = original_length()
            factor = number("factor", hf_config["max_position_embeddings"] / length)
            growth = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
            amplitude = number("attention_factor", growth)
            return LongScaling(
                short_factors=numbers("short_factor"),
                long_factors=numbers("long_factor"),
                # PhiMoE and Phi-3-small give both factors.
                short_attention_factor=number("short_mscale", amplitude),
                long_attention_factor=number("long_mscale", amplitude),
                original_max_position_embeddings=length,
            )
        case "proportional":
            return ProportionalScaling(number("factor", 1.0), partial)
        case _:
            raise ValueError(f"unknown rope scaling {kind!r}: known are {', '.join(_KINDS)}")
