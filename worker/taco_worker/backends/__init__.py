"""Back ends that load and run a model: the CPU kernels or torch."""
