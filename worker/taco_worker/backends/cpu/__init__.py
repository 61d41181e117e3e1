"""The model on the CPU kernels."""
