"""LoRA adapters that PEFT makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

ALL_LINEAR = "all-linear"


def peft_model(base: Path, *, seed: int = 1, rank: int = 4, **settings: Any) -> Any:
    """The model of a checkpoint with an adapter whose matrices are random and not small."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(seed)
    adapted = get_peft_model(model, LoraConfig(r=rank, lora_alpha=6, **settings))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name or parameter.requires_grad:
            parameter.data.normal_(std=0.2)
    return adapted


def make_adapter(path: Path, base: Path, *, seed: int = 1, rank: int = 4, **settings: Any) -> Path:
    """Writes an adapter of all linear layers, unless `settings` say otherwise, to `path`."""
    settings.setdefault("target_modules", ALL_LINEAR)
    peft_model(base, seed=seed, rank=rank, **settings).save_pretrained(path)
    return path
