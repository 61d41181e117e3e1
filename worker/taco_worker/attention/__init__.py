"""Attention over the paged KV cache: back ends, step metadata and masks."""
