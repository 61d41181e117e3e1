"""Prefix match: looks up a prefix in the radix tree, without changes or copies of token ids."""

from collections.abc import Hashable

from taco_scheduler.kv.block_ids import block_ids
from taco_scheduler.kv.common_blocks import num_common_blocks
from taco_scheduler.kv.host_transfers import HostTransfers
from taco_scheduler.kv.radix_node import Node, PrefixMatch, Root


def match_prefix(
    namespace: Hashable,
    root: Root | None,
    key: bytes,
    end: int,
    block_bytes: int,
    host: HostTransfers | None,
) -> PrefixMatch:
    """Find the longest prefix of `key[:end]` that the device and then the host tier hold.

    Args:
        root: of the namespace; None if the tree caches nothing for it.
        key: packed token ids.
        end: in bytes, a whole number of blocks.
        block_bytes: size of one block's packed token ids.
        host: None if there is no host tier.
    """
    node: Node | None = root
    position = num_node_blocks = num_host_blocks = num_evictable = 0
    blocks = block_ids()
    while node is not None and num_node_blocks == len(node.blocks) + node.num_below:
        child = node.children.get(key[position : min(position + block_bytes, end)])
        if child is None:
            break
        num_common = num_common_blocks(key, position, child.key, block_bytes, num_known=1)
        num_common = min(num_common, (end - position) // block_bytes)
        num_on_device = min(num_common, len(child.blocks))
        if num_on_device < num_common:
            assert host is not None
            num_on_host = host.num_readable(child.host_blocks[num_on_device:num_common])
            if num_on_device + num_on_host == 0:
                break
            num_common = num_on_device + num_on_host
            num_host_blocks += num_on_host
        node, num_node_blocks = child, num_common
        position += num_common * block_bytes
        blocks += node.blocks[:num_common]
        if node.lock_count == 0:
            num_evictable += num_on_device
    return PrefixMatch(namespace, node, num_node_blocks, blocks, num_host_blocks, num_evictable)


def up_to_snapshot(match: PrefixMatch) -> PrefixMatch:
    """The beginning of a match on the device, up to its deepest state snapshot."""
    node, num_node_blocks, num_blocks = match.node, match.num_node_blocks, len(match.blocks)
    while node is not None and node.parent is not None:
        last = max((index for index in node.snapshots if index <= num_node_blocks), default=0)
        num_blocks -= num_node_blocks - last
        num_node_blocks = last
        if last:
            break
        node = node.parent
        num_node_blocks = node.num_blocks
    num_evictable = 0
    for each in () if node is None else node.path_up():
        if each.lock_count == 0:
            num_evictable += num_node_blocks if each is node else each.num_blocks
    return PrefixMatch(
        match.namespace, node, num_node_blocks, match.blocks[:num_blocks], 0, num_evictable
    )


def path_of(root: Root | None, key: bytes, block_bytes: int) -> list[tuple[Node, int]]:
    """Find the nodes along a prefix in every tier; returns each with its blocks in the prefix.

    Args:
        root: of the namespace; None if the tree caches nothing for it.
        key: packed token ids of whole blocks.
        block_bytes: size of one block's packed token ids.
    """
    node: Node | None = root
    path: list[tuple[Node, int]] = []
    position = num_common = 0
    while node is not None and num_common == node.num_blocks:
        node = node.children.get(key[position : position + block_bytes])
        if node is not None:
            num_common = num_common_blocks(key, position, node.key, block_bytes, num_known=1)
            path.append((node, num_common))
            position += num_common * block_bytes
    return path
