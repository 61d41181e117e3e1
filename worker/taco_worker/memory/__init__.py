"""Sizes the KV cache; profiles GPU memory."""
