"""Logits processors: an operator's code that changes the logits of a sequence."""
