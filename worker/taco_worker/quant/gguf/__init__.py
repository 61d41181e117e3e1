"""GGUF, the format of llama.cpp: its files, its types of blocks, and its metadata."""
