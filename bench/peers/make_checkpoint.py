"""Creates a checkpoint of random bf16 weights in a known shape, for speed comparisons.

    python bench/peers/make_checkpoint.py DIRECTORY [--shape qwen2-0.5b] [--tokenizer FILE]

Nothing is downloaded: transformers initializes the weights and writes them under the published
names. Prompts are token ids. The tokenizer has a text for every id, because a server sends nothing
for a token without text. Constrained requests need a tokenizer with the words of a real one:
`python -m bench.grammar.inputs FOLDER` trains one.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SEED = 0
SPECIAL_TOKENS = ("<|endoftext|>", "<|bos|>", "<|pad|>")
_SPECIAL_IDS = {"eos_token_id": 0, "bos_token_id": 1, "pad_token_id": 2}
_QWEN2 = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    **_SPECIAL_IDS,
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
    "qwen3.5-0.8b": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
        },
        **_SPECIAL_IDS,
    },
    # OLMoE-1B-7B's layers, four of sixteen.
    "olmoe-4-layers": {
        "model_type": "olmoe",
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        **_SPECIAL_IDS,
    },
    # DeepSeek-V3's first two layers, which are dense.
    "deepseek-v3-2-layers": {
        "model_type": "deepseek_v3",
        "vocab_size": 129280,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "max_position_embeddings": 32768,
        **_SPECIAL_IDS,
    },
    # Small enough to test the benchmark itself.
    "olmoe-tiny": {
        "model_type": "olmoe",
        "vocab_size": 8192,
        "hidden_size": 128,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
        **_SPECIAL_IDS,
    },
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
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to copy; default: made up")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer)) if args.tokenizer else None
    make_checkpoint(args.directory, SHAPES[args.shape], tokenizer)


def make_checkpoint(
    directory: Path, config: dict[str, Any], tokenizer: Tokenizer | None = None
) -> None:
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(_hf_config(config), dtype=torch.bfloat16)
    model.save_pretrained(directory)
    write_tokenizer(directory, tokenizer or number_tokenizer(config["vocab_size"]))


def write_config(directory: Path, config: dict[str, Any]) -> None:
    """Writes config.json alone, for models with random weights."""
    found = _hf_config(config)
    found.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[found.model_type]]
    found.dtype = torch.bfloat16
    found.save_pretrained(directory)


def write_tokenizer(directory: Path, tokenizer: Tokenizer) -> None:
    """Writes the tokenizer's files alone."""
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[0],
        "bos_token": SPECIAL_TOKENS[1],
        "pad_token": SPECIAL_TOKENS[2],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")


def _hf_config(config: dict[str, Any]) -> PretrainedConfig:
    options = dict(config)
    return AutoConfig.for_model(options.pop("model_type"), **options)


def number_tokenizer(vocab_size: int) -> Tokenizer:
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
