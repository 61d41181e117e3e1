"""LoRA adapters: one that is merged into the weights of a model, or several that requests name."""
