"""A checkpoint that recites a text: each token of its answer is the token after the last one."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer

from support.checkpoint_tokenizer import BOS_TOKEN_ID, EOS_TOKEN_ID, save_tokenizer

PROMPT_END = "<|assistant|>"
_WIDTH = 512  # above the size of the vocabulary: each token has its own dimension


def make_reciting_checkpoint(
    path: Path, pieces: Sequence[str], *, special: Sequence[str] = (), **settings: Any
) -> Path:
    """A Llama whose greedy answer to a prompt that ends with `PROMPT_END` is `pieces`, and EOS.

    Args:
        pieces: tokens of the vocabulary, each of which occurs once.
        special: those that are special tokens.
        settings: entries of tokenizer_config.json, such as `chat_template`.
    """
    assert len(set(pieces)) == len(pieces)
    path.mkdir(parents=True, exist_ok=True)
    save_tokenizer(path, chat_template=None)
    file = path / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    added = [AddedToken(text, special=text in special) for text in (PROMPT_END, *pieces)]
    tokenizer.add_tokens(added)
    tokenizer.save(str(file))
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(config | settings))
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary[text] for text in (PROMPT_END, *pieces)]
    _model(tokenizer.get_vocab_size(), [*ids, EOS_TOKEN_ID]).save_pretrained(path)
    generation = {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": EOS_TOKEN_ID}
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def _model(vocab_size: int, chain: Sequence[int]) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=_WIDTH,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=1024,
        bos_token_id=BOS_TOKEN_ID,
        eos_token_id=EOS_TOKEN_ID,
        tie_word_embeddings=False,
    )
    assert vocab_size <= _WIDTH
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(vocab_size, _WIDTH))
        model.lm_head.weight.zero_()
        for before, after in pairwise(chain):
            model.lm_head.weight[after, before] = 1.0
    return model
