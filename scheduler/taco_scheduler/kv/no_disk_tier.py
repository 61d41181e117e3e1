"""The disk tier of a worker that has none: a null object for `DiskTransfers`."""

from collections.abc import Callable, Iterable, Mapping

from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_scheduler.kv.disk_transfers import PrefixRead, PrefixSave
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.radix_node import Node


class NoDiskTier:
    """Writes and reads nothing. See `DiskTransfers` for the methods."""

    exists = False
    has_unsaved = False
    is_flushed = True
    may_write = False
    outcomes: Mapping[str, int] = {}

    def save_prefix(self, save: PrefixSave) -> None:
        """Nothing is written."""

    def save(self, *, may_copy: bool) -> None:
        """Nothing is written."""

    def flush(self, nodes: Iterable[Node]) -> None:
        """Nothing is written."""

    def discard(self, save: PrefixSave | None, namespace: CacheNamespace, tokens: bytes) -> None:
        """There are no files."""

    def read_ahead(
        self,
        namespace: CacheNamespace,
        tokens: bytes,
        num_matched: int,
        is_worth_it: Callable[[int, int], bool],
    ) -> PrefixRead | None:
        return None

    def find(self, namespace: CacheNamespace, tokens: bytes, num_matched: int) -> list[bytes]:
        return []

    def pop(self, keys: list[bytes]) -> list[int]:
        return []

    def next_command(self) -> StoreCommand | None:
        return None

    def take(self, report: StoreReport) -> None:
        """There is no worker's disk tier that would report."""
