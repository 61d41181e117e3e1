"""FBGEMM's FP8: e4m3 matrices with a scale for each row.

The upper bound of activation scales in the configuration is not needed: products quantize
activations dynamically, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_worker.quant.formats.fp8 import Fp8Checkpoint, excluded_modules
from taco_worker.quant.stored_headers import read_headers


def read(config: Mapping[str, Any], model_dir: Path) -> Fp8Checkpoint:
    """The quantization of a checkpoint.

    Raises:
        ValueError: a setting is invalid.
    """
    headers = read_headers(model_dir)
    excluded = excluded_modules(config)
    return Fp8Checkpoint("fbgemm_fp8", excluded, None, headers, has_row_scales=True)
