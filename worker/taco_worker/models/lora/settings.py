"""Reads the adapter_config.json of a LoRA adapter in PEFT's format."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from taco_common.json_file import read_json_object

SETTINGS_FILE = "adapter_config.json"

# Fields that change what an adapter computes, in ways that a merge of B·A does not cover.
_UNSUPPORTED = (
    *("use_dora", "use_qalora", "lora_bias", "target_parameters", "trainable_token_indices"),
    *("layer_replication", "alora_invocation_tokens", "arrow_config", "velora_config"),
    *("use_bdlora", "kasa_config", "monteclora_config"),
)
# Initializations of training that also change the base weights; others are of A and B alone.
_KEEPS_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
_DEFAULT_ALPHA = 8  # of PEFT
# Keys of `alpha_pattern` are regular expressions. Without groups, and with few repetitions, none of
# them takes long to match.
_PATTERN = re.compile(r"[\w.|^$\\*+?-]+")
_MAX_REPETITIONS = 4
_MAX_ALPHA = 1e9


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """How the matrices A [rank, in] and B [out, rank] of a module change its weight.

    Attributes:
        alpha: the numerator of the factor of B·A.
        alphas: other numerators, by patterns of the ends of modules' names; the first counts.
        has_root: the denominator is the root of the rank, not the rank (rsLoRA, Kalajdzievski
            2023).
    """

    alpha: float
    alphas: Mapping[str, float]
    has_root: bool

    def scale(self, module: str, rank: int) -> float:
        """The factor of B·A for a module of this name (Hu et al. 2021)."""
        alpha = self.alpha
        for pattern, value in self.alphas.items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                alpha = value
                break
        return alpha / (math.sqrt(rank) if self.has_root else rank)


def read_settings(directory: Path) -> LoraSettings:
    """Read the settings of the adapter in `directory`.

    Raises:
        ValueError: the file is missing or damaged, is not that of a LoRA adapter, or asks for
            something that a merge does not cover.
    """
    file = directory / SETTINGS_FILE
    try:
        fields = read_json_object(file)
    except FileNotFoundError:
        raise ValueError(f"{directory} is no LoRA adapter: it has no {SETTINGS_FILE}") from None
    if (kind := fields.get("peft_type", "LORA")) != "LORA":
        raise ValueError(f"{file}: peft_type {kind!r:.100} is not supported, only LORA")
    for name in _UNSUPPORTED:
        if fields.get(name):
            raise ValueError(f"{file}: {name} {fields[name]!r:.100} is not supported")
    init = fields.get("init_lora_weights")
    if (init.lower() if isinstance(init, str) else init) not in _KEEPS_BASE:
        raise ValueError(
            f"{file}: init_lora_weights {init!r:.100} is not supported: it changes the weights of "
            "the base model"
        )
    if (bias := fields.get("bias", "none")) not in ("none", "all", "lora_only"):
        raise ValueError(f"{file}: bias {bias!r:.100} is not supported")
    alpha = _number(file, "lora_alpha", fields.get("lora_alpha", _DEFAULT_ALPHA))
    return LoraSettings(alpha, _alphas(file, fields), bool(fields.get("use_rslora", False)))


def _alphas(file: Path, fields: Mapping[str, Any]) -> Mapping[str, float]:
    patterns = fields.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise ValueError(f"{file}: alpha_pattern must be an object, not {patterns!r:.100}")
    alphas: dict[str, float] = {}
    for pattern, value in patterns.items():
        try:
            re.compile(pattern)
        except (re.error, OverflowError):
            raise ValueError(f"{file}: alpha_pattern {pattern!r:.100} is not valid") from None
        num_repetitions = sum(pattern.count(sign) for sign in "*+?")
        if not _PATTERN.fullmatch(pattern) or num_repetitions > _MAX_REPETITIONS:
            raise ValueError(
                f"{file}: alpha_pattern {pattern!r:.100} is not supported: it may have no groups "
                f"and classes, and {_MAX_REPETITIONS} repetitions"
            )
        alphas[pattern] = _number(file, "alpha_pattern", value)
    return MappingProxyType(alphas)


def _number(file: Path, name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_ALPHA:
        return float(value)
    raise ValueError(f"{file}: {name} must be a number, not {value!r:.100}")
