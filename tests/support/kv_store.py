"""The worker's side of the disk tier in the block manager's state machine."""

import struct
from dataclasses import dataclass, field

from support.kv_model import BLOCK_SIZE, Prefix, Tokens
from taco_proto.kv_tiers import StoreCommand, StoredBlock, StoreReport
from taco_scheduler.kv.namespace import CacheNamespace


@dataclass
class Store:
    """Files, and what it was told and has not done, or not reported.

    Attributes:
        files: the present files and their content.
        names: of every file that was ever written.
        damaged: files that are lost or damaged; a read of them fails.
        jobs: writes, reads and deletes in their order.
        reports: that have not arrived.
    """

    files: dict[bytes, list[Prefix | None]] = field(default_factory=dict)
    names: dict[bytes, StoredBlock] = field(default_factory=dict)
    damaged: set[bytes] = field(default_factory=set)
    was_asked: bool = False
    jobs: list[tuple[str, bytes, int]] = field(default_factory=list)
    reports: list[StoreReport] = field(default_factory=list)

    def restart(self) -> None:
        """Its link is a new one: it does not remember what it was told."""
        self.jobs.clear()
        self.reports.clear()
        self.was_asked = False

    def take(self, command: StoreCommand) -> None:
        if not self.was_asked:
            self.was_asked = True
            self._drop_orphans()
            found = tuple(self.names[key] for key in self.files)
            self.reports.append(StoreReport(found=found, is_complete=True))
        for host_block, block in command.writes:
            self.names[block.key] = block
            self.jobs.append(("write", block.key, host_block))
        self.jobs += [("read", key, host_block) for key, host_block in command.reads]
        self.jobs += [("delete", key, -1) for key in command.deletes]

    def prefix(self, key: bytes) -> Prefix:
        block = self.names[key]
        tokens: Tokens = struct.unpack(f"<{BLOCK_SIZE}i", block.token_ids)
        if block.parent:
            tokens = self.prefix(block.parent)[1] + tokens
        return CacheNamespace(block.adapter, block.cache_salt), tokens

    def _drop_orphans(self) -> None:
        """Parents come before their children, and what has no parent goes."""
        for key in self.damaged:
            self.files.pop(key, None)
        self.damaged.clear()
        kept: dict[bytes, list[Prefix | None]] = {}
        for key in sorted(self.files, key=lambda key: len(self.prefix(key)[1])):
            parent = self.names[key].parent
            if not parent or parent in kept:
                kept[key] = self.files[key]
        self.files = kept
