"""Small random checkpoints in Hugging Face's format, with a tokenizer beside them.

`make_checkpoint` builds the model with transformers, so that the same folder can be loaded by it as
the oracle and by the worker as the thing under test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from support.checkpoint_tokenizer import (
    BOS_TOKEN_ID,
    CHAT_TEMPLATE,
    END_OF_TURN_TOKEN_ID,
    EOS_TOKEN_ID,
    save_tokenizer,
)

POISON = 377  # see `make_poisoned_checkpoint`
# Sizes are small and odd on purpose: heads share KV, and no two dimensions are equal by accident.
_SIZES: dict[str, dict[str, Any]] = {
    "llama-like": {
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
    "OPTForCausalLM": {
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "pad_token_id": EOS_TOKEN_ID,
    },
    "GPT2LMHeadModel": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
    },
}


def make_checkpoint(
    path: Path,
    architecture: str = "LlamaForCausalLM",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    weights: str = "safetensors",
    chat_template: str | None = CHAT_TEMPLATE,
    add_bos: bool = False,
    generation_config: dict[str, Any] | None = None,
    added_tokens: Sequence[str] = (),
    **overrides: Any,
) -> Path:
    """Write a random checkpoint of `architecture` into `path` (created) and return `path`.

    Args:
        architecture: a causal language model class of transformers, such as "LlamaForCausalLM".
        seed: the same seed and overrides give the same weights.
        weights: "safetensors" or "bin" (a state dict written with torch.save).
        chat_template: Jinja source for tokenizer_config.json; None for a model without one.
        add_bos: whether the tokenizer itself puts BOS in front of each text.
        generation_config: the whole of generation_config.json; by default BOS and two EOS ids.
        added_tokens: tokens that the tokenizer recognizes as a whole.
        overrides: fields of the transformers config, such as `num_key_value_heads=1`.
    """
    path.mkdir(parents=True, exist_ok=True)
    vocab_size = save_tokenizer(
        path, chat_template=chat_template, add_bos=add_bos, added=added_tokens
    )
    model = _random_model(architecture, seed, {"vocab_size": vocab_size, **overrides}).to(dtype)
    if weights == "safetensors":
        model.save_pretrained(path)
    elif weights == "bin":
        model.config.architectures = [architecture]
        model.config.save_pretrained(path)
        torch.save(model.state_dict(), path / "pytorch_model.bin")
    else:
        raise ValueError(f"weights must be 'safetensors' or 'bin', not {weights!r}")
    if generation_config is None:
        eos_token_ids = [EOS_TOKEN_ID, END_OF_TURN_TOKEN_ID]
        generation_config = {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": eos_token_ids}
    (path / "generation_config.json").write_text(json.dumps(generation_config))
    return path


def plant_outliers(path: Path) -> Path:
    """Make two channels behind each norm 64 times as great: outliers in the rows of int8 products.

    The weights that read them stay, so the model is another one.
    """
    file = path / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensor[[3, tensor.shape[0] - 1]] *= 64
    save_file(tensors, file, {"format": "pt"})
    return path


def make_poisoned_checkpoint(path: Path) -> Path:
    """Write a checkpoint whose hidden states are NaN behind the token `POISON`, and return `path`.

    The LM head has other weights, so that the logits of healthy rows are finite.
    """
    make_checkpoint(path, tie_word_embeddings=False)
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def _random_model(architecture: str, seed: int, overrides: dict[str, Any]) -> Any:
    model_class = getattr(transformers, architecture)
    settings = {
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        **_SIZES.get(architecture, _SIZES["llama-like"]),
        **overrides,
    }
    config = model_class.config_class(**settings)
    generator = torch.Generator().manual_seed(seed)
    model = model_class(config).eval()
    with torch.no_grad():
        # Norms and biases start as ones and zeros and matrices so small that logits are nearly
        # flat: both would hide mistakes, so every parameter is drawn afresh.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                std = parameter.shape[-1] ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std * 1.5)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model
