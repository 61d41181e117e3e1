"""What must hold after every rule of the block manager's state machine: manager and model agree."""

from collections import Counter

import pytest
from hypothesis.stateful import invariant

from support.kv_model import BLOCK_SIZE, NOT_SENT, NUM_BLOCKS, contents_of, num_blocks_for
from support.kv_shadow import KvShadow
from taco_scheduler.kv.block_pool import BlockPool


class KvInvariants(KvShadow):
    """Compares the device and host tiers with the model. A mixin of the state machine."""

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        free = free_of(self.manager._pool)
        assert len(free) == len(set(free))
        assert set(free) == self.free_blocks()
        assert self.manager.num_free_blocks == len(free) + len(self.unpinned())
        assert self.manager.usage == pytest.approx(1 - self.manager.num_free_blocks / NUM_BLOCKS)

    @invariant()
    def references_are_owners(self) -> None:
        owners = Counter(block for sequence in self.live for block in sequence.table.blocks)
        owners.update(entry.block for entry in self.cached.values() if entry.block is not None)
        pool = self.manager._pool
        assert [pool.num_owners(block) for block in range(NUM_BLOCKS)] == [
            owners[block] for block in range(NUM_BLOCKS)
        ]

    @invariant()
    def host_references_are_owners(self) -> None:
        host = self.manager._host
        if host is None:
            return
        loading = {e.block: e.source for e in self.cached.values() if e.filled_by == NOT_SENT}
        loading.pop(None, None)  # what was evicted before it was loaded
        assert host._loads == loading
        owners = self.host_copies()
        owners.update(e.host_block for e in self.cached.values() if e.host_block is not None)
        for block in range(self.num_host_blocks):
            assert host._pool.num_owners(block) == owners[block]
        free = free_of(host._pool)
        assert len(free) == len(set(free))
        assert set(free) == set(range(self.num_host_blocks)) - set(owners)
        assert self.manager.num_used_host_blocks == self.num_host_blocks - len(free)

    @invariant()
    def tree_holds_what_the_model_cached(self) -> None:
        assert self.tree_blocks() == {
            prefix: (entry.block, entry.host_block) for prefix, entry in self.cached.items()
        }

    @invariant()
    def cached_blocks_hold_their_tokens(self) -> None:
        host = self.manager._host
        for prefix, entry in self.cached.items():
            contents = contents_of(prefix)
            if entry.block is not None:
                assert self.device_contents(entry.block) == contents
            if entry.host_block is not None:
                assert host is not None
                assert host.is_readable(entry.host_block) == (entry.copied_by is None)
                if entry.copied_by == NOT_SENT:
                    assert self.memory.device[host._offloads[entry.host_block]] == contents
                else:
                    assert self.memory.host[entry.host_block] == contents

    @invariant()
    def tree_is_well_formed(self) -> None:
        locks = Counter(self.locked())
        assert self.manager._pins.num_blocks == sum(pin.num_blocks for pin in self.pins)
        tree = self.manager._tree
        nodes, unlocked, below = set(), set(), set()
        for namespace, tokens, node in self.nodes():
            assert node.num_blocks > 0
            assert len(node.key) == node.num_blocks * tree.block_bytes
            assert len(node.host_blocks) in (0, node.num_blocks)
            assert node.parent is not None
            assert node.parent.children[bytes(node.key[: tree.block_bytes])] is node
            assert not (node.blocks and node.parent.num_below)
            start = len(tokens) - node.num_blocks * BLOCK_SIZE
            for end in range(start + BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
                assert node.lock_count == locks[namespace, tokens[:end]]
                num_uses = self.cached[namespace, tokens[:end]].num_uses
                assert node.num_uses == min(num_uses, self.min_uses)
            if node.lock_count == 0 and node.blocks:
                unlocked.add(node)
            if node.num_below:
                assert node.lock_count == 0
                below.add(node)
            nodes.add(node)
        assert set(tree._lru) == unlocked
        if tree.host_cache is not None:
            assert set(tree.host_cache.offloaded) == below
            assert set(tree.host_cache._duplicated) <= nodes
        assert tree.num_evictable == sum(len(node.blocks) for node in unlocked)
        for root in tree._roots.values():
            assert root.children or root.lock_count

    @invariant()
    def sequences_own_what_they_need(self) -> None:
        for sequence in self.live:
            blocks = sequence.table.blocks
            needed = max(num_blocks_for(sequence.num_reserved), sequence.num_cached_blocks)
            assert len(blocks) == needed
            assert len(set(blocks)) == needed
            assert self.has_valid_memory(sequence)
            for block in blocks[sequence.num_planned // BLOCK_SIZE :]:
                assert self.manager._pool.num_owners(block) == 1, "a writable block is shared"

    @invariant()
    def hits_are_counted(self) -> None:
        hits = self.manager.hits
        assert (hits.device, hits.host, hits.missed) == (
            self.hits["device"],
            self.hits["host"],
            self.hits["missed"],
        )


def free_of(pool: BlockPool) -> list[int]:
    """Each time that a block is free; those that were never used are not on the pool's list."""
    return [*pool._free, *range(len(pool._references), pool.num_blocks)]
