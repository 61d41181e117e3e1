"""Blocks of a disk tier, and reports of what became of them."""

import hashlib
import queue

from support.patience import PATIENCE_SECONDS
from taco_proto.kv_tiers import StoredBlock, StoreReport


def stored_block(*tokens: int, parent: bytes = b"", salt: str = "") -> StoredBlock:
    token_ids = b"".join(token.to_bytes(4, "little") for token in tokens)
    key = hashlib.blake2b(parent + salt.encode() + token_ids, digest_size=16).digest()
    return StoredBlock(key=key, parent=parent, adapter="", cache_salt=salt, token_ids=token_ids)


class Reports:
    """Collects what a disk tier's thread says."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[StoreReport] = queue.SimpleQueue()

    def __call__(self, report: StoreReport) -> None:
        self._queue.put(report)

    def next(self) -> StoreReport:
        return self._queue.get(timeout=PATIENCE_SECONDS)

    def found(self) -> list[StoredBlock]:
        """Every block that was reported as stored."""
        blocks: list[StoredBlock] = []
        while True:
            report = self.next()
            blocks += report.found
            if report.is_complete:
                return blocks

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()
