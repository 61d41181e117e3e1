"""The formats of quantized checkpoints, one module or package each; see `registry`."""
