"""The model on torch: decoder, CUDA graphs and weight offload."""
