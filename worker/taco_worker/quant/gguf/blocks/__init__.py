"""The quantized types of GGUF: blocks of some columns of a row, with their scales."""
