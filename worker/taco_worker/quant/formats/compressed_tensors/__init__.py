"""Checkpoints of compressed-tensors: integers and floats of 1 to 8 bits, by groups of modules."""
