"""torchao: the tensors that its safetensors files hold."""
