"""Creates a checkpoint of random bf16 weights in a known shape, for speed comparisons.

    python bench/peers/make_checkpoint.py DIRECTORY [--shape qwen2-0.5b]

Nothing is downloaded. Prompts are token ids. The tokenizer has a text for every id, because a
server sends nothing for a token without text.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SEED = 0
STANDARD_DEVIATION = 0.02
SPECIAL_TOKENS = ("<|endoftext|>", "<|bos|>", "<|pad|>")
_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
    "bos_token_id": 1,
    "pad_token_id": 2,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2-0.5b": _QWEN2
    | {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "qwen2-1.5b": _QWEN2
    | {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    # Small enough to test the benchmark itself.
    "qwen2-tiny": _QWEN2
    | {
        "vocab_size": 8192,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2-0.5b")
    args = parser.parse_args()
    make_checkpoint(args.directory, SHAPES[args.shape])


def make_checkpoint(directory: Path, config: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(_weights(config), directory / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(config["vocab_size"]).save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[0],
        "bos_token": SPECIAL_TOKENS[1],
        "pad_token": SPECIAL_TOKENS[2],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")


def _weights(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv_size = hidden // config["num_attention_heads"] * config["num_key_value_heads"]

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(
            0, STANDARD_DEVIATION, generator=generator
        )

    def norm() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16)

    weights = {"model.embed_tokens.weight": random(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, size in (("q", hidden), ("k", kv_size), ("v", kv_size)):
            weights[f"{prefix}self_attn.{name}_proj.weight"] = random(size, hidden)
            weights[f"{prefix}self_attn.{name}_proj.bias"] = random(size)
        weights[f"{prefix}self_attn.o_proj.weight"] = random(hidden, hidden)
        weights[f"{prefix}mlp.gate_proj.weight"] = random(inner, hidden)
        weights[f"{prefix}mlp.up_proj.weight"] = random(inner, hidden)
        weights[f"{prefix}mlp.down_proj.weight"] = random(hidden, inner)
        weights[f"{prefix}input_layernorm.weight"] = norm()
        weights[f"{prefix}post_attention_layernorm.weight"] = norm()
    weights["model.norm.weight"] = norm()
    return weights


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Makes a tokenizer of special tokens, all bytes, and numbers: " 300" is token 300."""
    known = (*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    numbers = (f"Ġ{token_id}" for token_id in range(len(known), vocab_size))
    vocabulary = {token: token_id for token_id, token in enumerate((*known, *numbers))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


if __name__ == "__main__":
    main()
