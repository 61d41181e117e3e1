"""Configurations of models, from the metadata of GGUF files."""
