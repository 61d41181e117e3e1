"""auto-round checkpoints: matrices in the formats of GPTQ or AWQ, with settings by module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_worker.quant.expressions import Expression, check_expressions, expression
from taco_worker.quant.formats.awq import awq_matrix
from taco_worker.quant.formats.gptq import BITS, GptqMatrix
from taco_worker.quant.integers.rules import is_language_head
from taco_worker.quant.integers.settings import Settings
from taco_worker.quant.modules import plain_name, possible_names
from taco_worker.quant.weight_format import Quantization, WeightFormat

_PLAIN_BITS = 16
_EXPRESSION = re.compile(r"[*+?\[\](){}|^$\\]")


def read(config: Mapping[str, Any], model_dir: Path) -> Quantization:
    """The quantization that a `quantization_config` describes.

    Raises:
        ValueError: a setting is unknown or not allowed, or a format is not one of integers.
    """
    settings = Settings(config)
    packing = settings.text("packing_format", "backend", default="auto_round:auto_gptq")
    packing = packing.replace("-", "_").replace("autoround", "auto_round")
    if not packing.startswith("auto_round") or "llm_compressor" in packing or "fp" in packing:
        raise ValueError(f"packing_format {packing!r} of auto-round is not supported")
    own = {key: part.over(settings) for key, part in settings.parts("extra_config").items()}
    texts = list(filter(_EXPRESSION.search, own))
    check_expressions(texts, f"{settings.name}.extra_config")
    expressions = [(expression(text), own[text]) for text in texts]
    return AutoRound(
        settings,
        packing,
        tuple(map(plain_name, settings.names("block_name_to_quantize", "to_quant_block_names"))),
        {plain_name(key): part for key, part in own.items()},
        tuple(expressions),
    )


@dataclass(frozen=True, slots=True)
class AutoRound:
    """An auto-round checkpoint.

    Attributes:
        settings: of modules that `own` and `expressions` do not name.
        packing: the format of its matrices: "awq", "gptqmodel" and "gptq" are parts of the names.
        blocks: what the plain names of quantized modules begin with; empty: all are quantized but
            the language model head.
        own: settings by the plain names of modules.
        expressions: settings by what the names of modules match in part, in their order.
    """

    settings: Settings
    packing: str
    blocks: tuple[str, ...]
    own: Mapping[str, Settings]
    expressions: tuple[tuple[Expression, Settings], ...]
    method = "auto-round"

    def __post_init__(self) -> None:
        """Raises ValueError for settings that no module can have."""
        for settings in (self.settings, *self.own.values()):
            self._matrix(settings, None)

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        settings = self._settings_of(module)
        return None if settings is None else self._matrix(settings, (n, k))

    def is_extra(self, name: str) -> bool:
        return False

    def _settings_of(self, module: str) -> Settings | None:
        name = plain_name(module)
        if name in self.own:
            return self.own[name]
        for pattern, settings in self.expressions:
            if any(pattern.search(possible) for possible in possible_names(module)):
                return settings
        if self.blocks:
            is_quantized = any(f"{name}.".startswith(f"{block}.") for block in self.blocks)
        else:
            is_quantized = not is_language_head(module)
        return self.settings if is_quantized else None

    def _matrix(self, settings: Settings, shape: tuple[int, int] | None) -> WeightFormat | None:
        """The format of a matrix [n, k], if it is quantized; only checks settings without shape."""
        if settings.integer("bits", default=_PLAIN_BITS) >= _PLAIN_BITS:
            return None
        data_type = settings.text("data_type", default="int")
        if not data_type.startswith("int"):
            raise ValueError(f"data_type {data_type!r} of auto-round is not supported, only int")
        if settings.integer("act_bits", default=_PLAIN_BITS) < _PLAIN_BITS:
            raise ValueError("auto-round checkpoints with quantized activations are not supported")
        group_size = settings.group_size("group_size")
        is_symmetric = settings.flag("sym", default=True)
        bits = settings.bits((4,) if "awq" in self.packing else BITS, "bits")
        if shape is None:
            return None
        if "awq" in self.packing:
            return awq_matrix("gemm", *shape, group_size)
        return GptqMatrix(
            *shape,
            bits,
            group_size,
            is_symmetric=is_symmetric,
            has_zeros=not is_symmetric,
            has_v1_zeros="gptq" in self.packing and "gptqmodel" not in self.packing,
        )
