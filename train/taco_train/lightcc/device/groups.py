"""The process groups of levels: ranks of a host, peers on all hosts, and all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from taco_train.collective.communicator import Communicator
from taco_train.collective.levels import make_layout
from taco_train.collective.store import torch_store_of
from taco_train.lightcc.device import cuda

# torch's own interface of a group: c10d::Backend.
Group = Any


class LevelGroups:
    """Groups of NCCL (CUDA) or gloo (CPU), which are opened when they are first used.

    All ranks of a communicator use them in the same order.

    Args:
        communicator: names the ranks, their hosts and the store; nothing is sent through it.

    Attributes:
        size: number of ranks.
        num_hosts: groups of ranks on one host, as `LIGHT_INTRA_SIZE` and the hosts divide them.
        num_local: ranks in each; 1 where they differ in size, since each rank needs a peer.
        local_index: of this rank in its host.
    """

    def __init__(self, communicator: Communicator, device: torch.device) -> None:
        self._communicator = communicator
        self._device = device
        self._opened: dict[str, Group] = {}
        layout = make_layout(communicator.rank, communicator.placement.hosts, communicator.levels)
        self._domains = layout.domains
        self._members = layout.members
        self.size = communicator.size
        self.num_hosts = len(layout.domains)
        has_peers = len({len(domain) for domain in layout.domains}) == 1
        self.num_local = len(layout.members) if has_peers else 1
        self.local_index = layout.members.index(communicator.rank)

    @property
    def local(self) -> Group:
        """The ranks of this host."""
        return self._open(f"host of {self._members[0]}", self._members)

    @property
    def peers(self) -> Group:
        """The ranks of all hosts with this local index."""
        return self._open(
            f"peers {self.local_index}", [domain[self.local_index] for domain in self._domains]
        )

    @property
    def everyone(self) -> Group:
        """All ranks."""
        return self._open("all", range(self._communicator.size))

    def abort(self) -> None:
        """Ends what is in progress: a rank is lost."""
        for group in self._opened.values():
            group.abort()

    def _open(self, name: str, ranks: Sequence[int]) -> Group:
        if name not in self._opened:
            communicator = self._communicator
            prefix = f"taco_train/device/{communicator.name}/{self._device.type}/{name}"
            # A name may be used again: every rank counts how often it has.
            number = communicator.store.add(f"{prefix}/{communicator.rank}/uses", 1)
            store = PrefixStore(f"{prefix}/{number}", torch_store_of(communicator.store))
            rank, seconds = list(ranks).index(communicator.rank), communicator.timeout_seconds
            self._opened[name] = (
                cuda.open_nccl(store, rank, len(ranks), seconds)
                if self._device.type == "cuda"
                else ProcessGroupGloo(store, rank, len(ranks), timedelta(seconds=seconds))
            )
        return self._opened[name]
