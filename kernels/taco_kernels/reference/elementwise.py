"""Reference of sums, products, factors, caps and gates, computed in float32 for any dtype."""

import torch
from torch import Tensor


def add(x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
    """x + factor * y"""
    return (x.float() + factor * y.float()).to(x.dtype)


def scale(x: Tensor, factor: float) -> Tensor:
    """x * factor"""
    return (x.float() * factor).to(x.dtype)


def cap(x: Tensor, limit: float) -> Tensor:
    """limit * tanh(x / limit) (Gemma 2)"""
    return (limit * torch.tanh(x.float() / limit)).to(x.dtype)


def clip(x: Tensor, limit: float) -> Tensor:
    """x within [-limit, limit] (`clip_qkv` of OLMo)"""
    return x.clamp(-limit, limit)


def xielu(x: Tensor, weight: Tensor) -> Tensor:
    """xIELU (Huang and Schlag 2024).

    Args:
        weight: [4]: positive, negative, beta, eps. The activation is positive * x^2 + beta * x
            above 0, else (beta + negative) * (exp(min(x, eps)) - 1 - x) + beta * x.
    """
    positive, negative, beta, eps = weight.float().unbind()
    numbers = x.float()
    below = (beta + negative) * (torch.expm1(torch.minimum(numbers, eps)) - numbers)
    curved = torch.where(numbers > 0, positive * numbers * numbers, below)
    return (curved + beta * numbers).to(x.dtype)


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """x * y"""
    return (x.float() * y.float()).to(x.dtype)


def gate(x: Tensor, gate: Tensor) -> Tensor:
    """x * sigmoid(gate); gate [..., 1] or as x."""
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)
