"""GGUF files of small checkpoints, written as llama.cpp's converter does."""
