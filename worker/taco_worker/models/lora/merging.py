"""Merges a LoRA adapter into the tensors of a model while they are read."""

from __future__ import annotations

from torch import Tensor

from taco_worker.models.lora.adapter import LoraAdapter
from taco_worker.models.tensor_files import iterate_tensors


class AdapterMerger:
    """Changes the tensors of a model. Those of the adapter that the model needs, which are small,
    stay in memory until then.
    """

    def __init__(self, adapter: LoraAdapter) -> None:
        """Raises ValueError if the file of the adapter cannot be read."""
        self._adapter = adapter
        needed = set(adapter.replaced.values())
        for product in adapter.products.values():
            needed |= {product.a, product.b}
        tensors = iterate_tensors(adapter.file, needed.__contains__)
        self._tensors = {name: tensor.clone() for name, tensor in tensors}
        self._merged: set[str] = set()

    def merged(self, name: str, tensor: Tensor) -> Tensor:
        """The model's tensor of the canonical name `name`, with the adapter's change if any.

        The sum is computed in float32 and rounded once, to the type of `tensor`. So the result is
        that of a checkpoint into which the adapter was merged in float32.
        """
        replacement = self._adapter.replaced.get(name)
        product = self._adapter.products.get(name)
        if replacement is None and product is None:
            return tensor
        self._merged.add(name)
        dtype = tensor.dtype
        if replacement is not None:
            tensor = self._tensors.pop(replacement)
        if product is not None:
            a, b = self._tensors.pop(product.a).float(), self._tensors.pop(product.b).float()
            added = (b @ a) * product.scale
            tensor = tensor.float() + (added.T if product.is_transposed else added)
        return tensor.to(dtype)

    def finish(self) -> None:
        """Raises ValueError if the checkpoint lacked a tensor that the adapter changes."""
        self._adapter.check_found(self._merged)
