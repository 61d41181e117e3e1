"""torch's TCPStore as the store of a rendezvous, and `connect`, by which ranks find each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

from torch._C._distributed_c10d import Store, TCPStore

from taco_train.cluster import rendezvous
from taco_train.cluster.launch import detect
from taco_train.cluster.ranks import Placement
from taco_train.cluster.store import KeyValueStore, RendezvousError

_TIMEOUT_SECONDS = 300.0
_generations = count()
# Rank 0 serves its store until it ends. A rank that connects anew may still reach the server of
# the generation before.
_served: dict[tuple[str, int], TCPStore] = {}


def connect(
    environment: Mapping[str, str] | None = None,
    *,
    timeout: float = _TIMEOUT_SECONDS,
    generation: str | None = None,
    agreed: Mapping[str, str] | None = None,
) -> tuple[Placement, KeyValueStore]:
    """Finds the other ranks, as the launcher's environment says; all ranks call it together.

    Args:
        environment: this process's by default.
        timeout: seconds to wait for the other ranks, and later for a key of the store.
        generation: the same on all ranks, and another one each time that ranks connect anew. By
            default the number of calls in this process.
        agreed: variables that must be equal on all ranks, as this rank reads them.

    Returns:
        The placement of this rank, and the store, which rank 0 or the launcher serves.

    Raises:
        ConfigurationError: a variable is wrong, or what ranks say differs.
        RendezvousError: a rank does not come.
    """
    environment = os.environ if environment is None else environment
    return rendezvous.connect(
        detect(environment),
        environment,
        open_store,
        timeout=timeout,
        generation=str(next(_generations)) if generation is None else generation,
        agreed=agreed,
    )


def open_store(
    address: str, port: int, *, serves: bool, timeout: float
) -> tuple[KeyValueStore, int]:
    """Opens a TCPStore (rendezvous.OpenStore).

    A store that this process serves already at the port is shared, as torch's `env://` does: DDP
    and LightCC may both use MASTER_ADDR and MASTER_PORT.
    """
    where = f"the store at {address}:{port}"
    with _readable(f"{where} cannot be {'served' if serves else 'reached'} within {timeout:g} s"):
        store = TCPStore(
            address,
            port,
            is_master=serves,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    if serves:
        _served[address, store.port] = store
    return TorchStore(store, timeout), store.port


class TorchStore:
    """A store of torch with the errors of this package.

    Attributes:
        wrapped: the store of torch.
    """

    def __init__(self, store: Store, timeout: float) -> None:
        self.wrapped = store
        self._timeout = timeout

    def set(self, key: str, value: bytes | str, /) -> None:
        with _readable(f"{key} cannot be set"):
            self.wrapped.set(key, value)  # type: ignore[arg-type]  # takes bytes as well

    def get(self, key: str, /) -> bytes:
        with _readable(f"no rank has set {key} within {self._timeout:g} s, or the store is gone"):
            return bytes(self.wrapped.get(key))

    def add(self, key: str, amount: int, /) -> int:
        with _readable(f"{key} cannot be increased"):
            return int(self.wrapped.add(key, amount))


def torch_store_of(store: KeyValueStore) -> Store:
    """The store as torch's process groups take it.

    Raises:
        ValueError: it is not one of torch.
    """
    if not isinstance(store, TorchStore):
        raise ValueError(f"process groups need a store of torch, not {type(store).__name__}")
    return store.wrapped


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """torch's errors begin with a line of text, and end with stacks of C++."""
    try:
        yield
    except RuntimeError as error:  # DistStoreError, DistNetworkError and timeouts are RuntimeErrors
        reason = str(error).partition("\n")[0].partition(". Exception raised")[0]
        raise RendezvousError(f"{what}: {reason}") from error
