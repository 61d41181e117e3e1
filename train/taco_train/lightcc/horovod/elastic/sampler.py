"""A sampler that divides what is left of an epoch among the ranks that are left."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch

from taco_train.lightcc.horovod.state import current, is_initialized


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a data set among ranks; samples that were processed do not come again in the epoch.

    Call `record_batch` after each batch, and `set_epoch` at the end of each epoch.

    Args:
        dataset: with a length.
        shuffle: whether samples come in another order each epoch.
        seed: of the order; the same on all ranks.

    Attributes:
        epoch: of the current order.
        processed_indices: samples of this epoch that this rank has recorded, and those that all
            ranks had at the last `sync` of the state.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.indices: list[int] = []
        self.remaining_indices: list[int] = []
        self.num_replicas, self.rank = 1, 0
        self.num_samples = self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: no sample is processed."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank has processed its batch of this number."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """This rank has processed these samples."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch of this number."""
        start = batch_idx * batch_size
        return self.indices[start : start + batch_size]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def merge(self, states: list[dict[str, Any]]) -> None:
        """Takes over the epoch of rank 0, and what all ranks of that epoch have processed."""
        epoch = states[0]["epoch"]
        same = [state["processed_indices"] for state in states if state["epoch"] == epoch]
        self.load_state_dict(
            {"epoch": epoch, "processed_indices": {one for some in same for one in some}}
        )

    def reset(self) -> None:
        """Divides the samples that are left among the ranks that there are now."""
        placement = current().placement if is_initialized() else None
        self.num_replicas = placement.size if placement else 1
        self.rank = placement.rank if placement else 0
        left = [one for one in range(len(self.dataset)) if one not in self.processed_indices]
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(left)
        self.remaining_indices = left
        self.num_samples = -(-len(left) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        padded = left * -(-self.total_size // len(left)) if left else []
        self.indices = padded[: self.total_size][self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
