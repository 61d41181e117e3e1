"""Write a trained checkpoint in Hugging Face's format.

python -m recipe.export demo --checkpoints /tmp/demo-checkpoints --out taco_demo/models/demo
"""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from recipe.chat import BEGIN, CHAT_TEMPLATE, END, PAD, special_token_ids
from recipe.model import SHAPES, ModelShape

DEFAULT_TEMPERATURE = 0.3


def export(name: str, checkpoints: Path, out: Path) -> None:
    """Write config, weights in bf16, tokenizer and generation defaults of the model called name."""
    out.mkdir(parents=True, exist_ok=True)
    state = torch.load(checkpoints / f"{name}.pt", weights_only=True)
    weights = {key: weight.to(torch.bfloat16).contiguous() for key, weight in state.items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(checkpoints / "tokenizer.json", out / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(checkpoints / "tokenizer.json"))
    token_ids = special_token_ids(tokenizer)
    shape = SHAPES[name]
    _write(out / "config.json", model_config(shape, token_ids))
    _write(out / "generation_config.json", generation_config(token_ids))
    _write(out / "tokenizer_config.json", tokenizer_config(shape))


def model_config(shape: ModelShape, token_ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(shape),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "bos_token_id": token_ids[BEGIN],
        "eos_token_id": token_ids[END],
        "pad_token_id": token_ids[PAD],
    }


def generation_config(token_ids: dict[str, int]) -> dict[str, Any]:
    return {
        "bos_token_id": token_ids[BEGIN],
        "eos_token_id": [token_ids[END]],
        "pad_token_id": token_ids[PAD],
        "do_sample": True,
        "temperature": DEFAULT_TEMPERATURE,
    }


def tokenizer_config(shape: ModelShape) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": shape.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.name, arguments.checkpoints, arguments.out)


if __name__ == "__main__":
    main()
