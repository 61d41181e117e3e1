"""Quantized checkpoints: how each format stores matrices, and which modules are stored so."""
