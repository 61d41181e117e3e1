"""The token ids of every slot, on the model's device: a step reads the tokens of the step before
without a round trip to the host."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from taco_proto.steps import IntArray
from taco_worker.devices.transfers import Array, Transfers


class TokenTable(Protocol):
    """Token ids of all slots.

    Attributes:
        data: int32 [max_num_seqs, max_model_len], on the model's device; entries past a sequence's
            tokens are undefined.
    """

    data: Tensor

    def put(self, slots: IntArray, starts: IntArray, ends: IntArray, token_ids: IntArray) -> None:
        """Fill each slot's positions from its start to its end; `token_ids` slot after slot."""
        ...

    def at(self, slots: IntArray, positions: IntArray) -> Tensor:
        """The token ids at these positions: int32 [size of slots], on the device."""
        ...

    def write(self, slots: IntArray, positions: IntArray, token_ids: Tensor) -> None:
        """Write one token per slot.

        Args:
            token_ids: integers [size of slots], on the device. Negative ids mark sequences that
                end with an error; they are stored as 0, because the next step may run before the
                error is known.
        """
        ...


def make_token_table(max_num_seqs: int, max_model_len: int, transfers: Transfers) -> TokenTable:
    if transfers.device.type == "cpu":
        return HostTokenTable(max_num_seqs, max_model_len)
    return DeviceTokenTable(max_num_seqs, max_model_len, transfers)


class HostTokenTable:
    """A table in host memory: numpy's indexing costs a fraction of torch's.

    Attributes:
        array: shares the memory of `data`.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self.data = torch.empty((max_num_seqs, max_model_len), dtype=torch.int32)
        self.array: IntArray = self.data.numpy()

    def put(self, slots: IntArray, starts: IntArray, ends: IntArray, token_ids: IntArray) -> None:
        place = 0
        for slot, start, end in zip(slots.tolist(), starts.tolist(), ends.tolist(), strict=True):
            self.array[slot, start:end] = token_ids[place : place + end - start]
            place += end - start

    def at(self, slots: IntArray, positions: IntArray) -> Tensor:
        return torch.from_numpy(self.array[slots, positions])

    def write(self, slots: IntArray, positions: IntArray, token_ids: Tensor) -> None:
        self.array[slots, positions] = np.maximum(token_ids.numpy(), 0)


class DeviceTokenTable:
    """A table on a GPU: the CUDA stream orders reads after earlier writes."""

    def __init__(self, max_num_seqs: int, max_model_len: int, transfers: Transfers) -> None:
        shape = (max_num_seqs, max_model_len)
        self.data = torch.empty(shape, dtype=torch.int32, device=transfers.device)
        self._flat = self.data.view(-1)
        self._transfers = transfers

    def put(self, slots: IntArray, starts: IntArray, ends: IntArray, token_ids: IntArray) -> None:
        lengths = ends - starts
        before = np.cumsum(lengths) - lengths
        positions = np.arange(token_ids.size) + np.repeat(starts - before, lengths)
        places = self._places(np.repeat(slots, lengths), positions)
        index, values = self._transfers.upload(places, token_ids)
        self._flat.index_copy_(0, index, values)

    def at(self, slots: IntArray, positions: IntArray) -> Tensor:
        (index,) = self._transfers.upload(self._places(slots, positions))
        return self._flat[index]

    def write(self, slots: IntArray, positions: IntArray, token_ids: Tensor) -> None:
        (index,) = self._transfers.upload(self._places(slots, positions))
        self._flat.index_copy_(0, index, token_ids.int().clamp_(min=0))

    def _places(self, slots: Array, positions: Array) -> Array:
        """int64 indices into the flat table."""
        places: Array = slots.astype(np.int64) * self.data.shape[1] + positions
        return places
