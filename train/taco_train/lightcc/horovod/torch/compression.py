"""Compression of whole tensors before they are submitted, with Horovod's interface.

It reduces the bytes inside a host too, and a sum of float16 gradients loses more than LightCC's
own compression between hosts: LIGHT_COMPRESSION is the better choice for new scripts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Compressor:
    """What users may subclass."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor to send, and what `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The received tensor in the form of the original."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        if tensor.dtype.is_floating_point:
            return tensor.to(torch.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors by name."""

    none = NoneCompressor
    fp16 = FP16Compressor
