"""Weight offload (`cpu_offload_gb`): keeps the last layers' weights in host memory.

Two buffers on the device alternate: while a layer computes in one, the next layer's weights are
copied into the other. The link to the host then limits a step's speed, but the device can run a
model that its memory does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from taco_worker.devices.byte_units import gibibytes

NUM_BUFFERS = 2
_ALIGNMENT = 256  # bytes, as torch's allocator aligns


def num_host_layers(layer_bytes: Sequence[int], max_bytes: int) -> int:
    """The number of last layers whose weights fit into `max_bytes` of host memory.

    Raises:
        ValueError: not one fits.
    """
    count = 0
    while count < len(layer_bytes) and sum(layer_bytes[-count - 1 :]) <= max_bytes:
        count += 1
    if not count:
        raise ValueError(
            f"cpu_offload_gb of {gibibytes(max_bytes)} holds no layer: one takes "
            f"{gibibytes(max(layer_bytes))}"
        )
    return count


def offload_layers(decoder: nn.Module, layers: Sequence[nn.Module], device: torch.device) -> None:
    """Make layers whose loaded weights are on the host compute on `device`."""
    offloaded = _Offloaded(layers, device)
    # The first offloaded layer's weights arrive while the layers before it run.
    decoder.register_forward_pre_hook(lambda *_: offloaded.start(0))


def buffer_bytes(layer_bytes: Sequence[int]) -> int:
    """Device memory of the buffers for offloaded layers with these sizes in bytes."""
    return min(NUM_BUFFERS, len(layer_bytes)) * max(layer_bytes, default=0)


class _Offloaded:
    """Keeps each layer's parameters as views of a buffer that is filled before the layer runs."""

    def __init__(self, layers: Sequence[nn.Module], device: torch.device) -> None:
        self._device = device
        self._hosts = [self._to_host(layer) for layer in layers]
        size = max(host.numel() for host in self._hosts)
        self._buffers = [
            torch.empty(size, dtype=torch.uint8, device=device)
            for _ in range(min(NUM_BUFFERS, len(layers)))
        ]
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        for index, layer in enumerate(layers):
            self._view(layer, self._buffers[index % len(self._buffers)])
            layer.register_forward_pre_hook(self._before(index))

    def _before(self, index: int) -> Any:
        """A hook that waits for a layer's weights and starts copying the next layer's."""

        def fetch(*_: object) -> None:
            self._arrive()
            if index + 1 < len(self._hosts):
                self.start(index + 1)

        return fetch

    def start(self, index: int) -> None:
        """Copy a layer's weights after all launched work, which may still read the buffer."""
        host, buffer = self._hosts[index], self._buffers[index % len(self._buffers)]
        if self._copies is None:
            buffer[: host.numel()].copy_(host)
            return
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            buffer[: host.numel()].copy_(host, non_blocking=True)

    def _arrive(self) -> None:
        if self._copies is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._copies)

    def _to_host(self, layer: nn.Module) -> Tensor:
        """Copy all of a layer's parameters into one buffer of pinned memory."""
        size = sum(_padded(parameter) for parameter in layer.parameters())
        pinned = self._device.type == "cuda"
        host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        start = 0
        for parameter in layer.parameters():
            flat = parameter.data.reshape(-1).view(torch.uint8)
            host[start : start + flat.numel()].copy_(flat)
            start += _padded(parameter)
        return host

    def _view(self, layer: nn.Module, buffer: Tensor) -> None:
        start = 0
        for parameter in layer.parameters():
            part = buffer[start : start + parameter.nbytes]
            start += _padded(parameter)
            parameter.data = part.view(parameter.dtype).view(parameter.shape)


def _padded(parameter: Tensor) -> int:
    return -(-parameter.nbytes // _ALIGNMENT) * _ALIGNMENT
