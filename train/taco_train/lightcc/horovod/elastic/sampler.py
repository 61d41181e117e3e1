"""A sampler that divides what is left of an epoch among the ranks that are left."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from taco_train.lightcc.horovod.state import current, is_initialized


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a data set among ranks; samples that were processed do not come again in the epoch.

    Ranks take turns in one order, so what they have processed together is its beginning: one number
    is the state of an epoch. A lost rank's samples count too, and a commit costs nothing in large
    data sets.

    Call `record_batch` after each batch, and `set_epoch` at the end of each epoch.

    Args:
        dataset: with a length.
        shuffle: whether samples come in another order each epoch.
        seed: of the order; the same on all ranks.

    Attributes:
        epoch: of the current order.
        processed_num: samples of this epoch that all ranks together have processed.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.remaining_indices: list[int] = []
        self.num_replicas, self.rank = 1, 0
        self.num_samples = self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: no sample is processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed a batch.

        Args:
            batch_idx: not needed; Horovod takes it.
            batch_size: samples of one rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the samples that are left among the ranks that there are now."""
        placement = current().placement if is_initialized() else None
        self.num_replicas = placement.size if placement else 1
        self.rank = placement.rank if placement else 0
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        # Ranks have equally many: the first samples come again where they do not divide evenly.
        padded = left * -(-self.total_size // len(left)) if left else []
        return iter(padded[: self.total_size][self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
