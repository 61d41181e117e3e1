"""A small model with recurrent states and attention: Qwen3.5."""

from typing import Any

# Of `make_checkpoint`. Three layers of the gated delta rule, then one of attention.
RECURRENT: dict[str, Any] = {
    "architecture": "Qwen3_5ForCausalLM",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
