"""Host offload: copies blocks of the radix tree to the host tier, and evicts them from it."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from taco_scheduler.kv.host_transfers import HostTransfers
from taco_scheduler.kv.radix_node import NO_BLOCK, Node


class HostOffload:
    """The radix tree's blocks in the host tier.

    When the host is full, it first evicts blocks that the device holds as well. Then it evicts the
    tails of the leaves that left the device first.

    Args:
        min_uses: nodes with fewer uses are not copied.
        cut: removes a node's tail and its descendants from the tree.

    Attributes:
        offloaded: nodes with blocks only in the host tier, in order of their offload. A node comes
            behind its descendants.
    """

    def __init__(
        self, host: HostTransfers, min_uses: int, cut: Callable[[Node, int], None]
    ) -> None:
        self.offloaded: OrderedDict[Node, None] = OrderedDict()
        self._duplicated: dict[Node, None] = {}  # nodes whose blocks the device may hold, too
        self._host = host
        self.min_uses = min_uses
        self._cut = cut

    def offload(self, leaf: Node, first: int) -> None:
        """Offload the device blocks of a leaf from `first` on.

        Blocks that find no space on the host leave the tree.
        """
        self._host.cancel_loads(leaf.blocks[first:])
        num_kept = self._copy_tail(leaf, first)
        leaf.num_below += len(leaf.blocks) - first
        del leaf.blocks[first:]
        if num_kept < leaf.num_blocks:
            self._cut(leaf, num_kept)
        if leaf.num_below:
            self.offloaded[leaf] = None

    def copy(self, node: Node, indexes: list[int]) -> int:
        """Copy blocks of a node to the host; they also stay on the device.

        Returns:
            How many of `indexes`, from the first on, found space.
        """
        num_copied = min(len(indexes), self._free_blocks(len(indexes)))
        if num_copied:
            node.host_blocks = node.host_blocks or [NO_BLOCK] * node.num_blocks
            targets = self._host.offload([node.blocks[i] for i in indexes[:num_copied]])
            for i, target in zip(indexes, targets, strict=False):
                node.host_blocks[i] = target
            self._duplicated[node] = None
        return num_copied

    def attach(self, end: Node, host_blocks: list[int]) -> None:
        """Give host blocks, which were read from disk, to the tree.

        Args:
            end: last node of their prefix.
            host_blocks: of the prefix's last blocks; the first one is the first of a node.
        """
        node: Node | None = end
        while host_blocks:
            assert node is not None
            own = host_blocks[-node.num_blocks :]
            host_blocks = host_blocks[: -node.num_blocks]
            if node.host_blocks:
                self._host.release(own)  # an unfinished copy exists
            else:
                node.host_blocks = own
            self._duplicated[node] = None
            node = node.parent

    def take(self, count: int) -> list[int]:
        """Take `count` empty host blocks, or as many as there is space for."""
        return self._host.take(min(count, self._free_blocks(count)))

    def note_duplicates(self, node: Node) -> None:
        self._duplicated[node] = None

    def note_split(self, upper: Node, lower: Node) -> None:
        if lower in self._duplicated:
            self._duplicated[upper] = None

    def join(self, runs: list[Node]) -> list[int]:
        """Merge the host blocks of several nodes, which are on the device, for the last of them."""
        for run in runs:
            self.forget(run)
        if not any(run.host_blocks for run in runs):
            return []
        self._duplicated[runs[-1]] = None
        columns = [run.host_blocks or [NO_BLOCK] * len(run.blocks) for run in runs]
        return [block for column in columns for block in column]

    def forget(self, node: Node) -> None:
        """Drop a node that left the tree."""
        self.offloaded.pop(node, None)
        self._duplicated.pop(node, None)

    def drop_unfilled(self, roots: Iterable[Node]) -> None:
        """Remove host blocks whose copies failed from the tree."""
        pending = list(roots)
        while pending:
            node = pending.pop()
            for i, block in enumerate(node.host_blocks):
                if block == NO_BLOCK or self._host.is_readable(block):
                    continue
                if i >= len(node.blocks):
                    self._cut(node, i)
                    break
                self._host.release([block])
                node.host_blocks[i] = NO_BLOCK
            pending += node.children.values()

    def _copy_tail(self, leaf: Node, first: int) -> int:
        """Copy the device blocks of `leaf` from `first` on, unless the host has them.

        Returns:
            How many of the leaf's blocks can stay in the tree.
        """
        host, host_blocks = self._host, leaf.host_blocks
        if host_blocks:
            held = host_blocks[first : len(leaf.blocks)]
            missing = [i for i, block in enumerate(held, first) if block == NO_BLOCK]
        else:
            missing = list(range(first, len(leaf.blocks)))
        if not missing:
            return leaf.num_blocks
        if leaf.num_uses < self.min_uses:
            return missing[0]
        num_copied = min(len(missing), self._free_blocks(len(missing), leaf, first))
        if num_copied and not host_blocks:
            host_blocks = leaf.host_blocks = [NO_BLOCK] * leaf.num_blocks
        targets = host.offload([leaf.blocks[i] for i in missing[:num_copied]])
        for i, target in zip(missing, targets, strict=False):
            host_blocks[i] = target
        return leaf.num_blocks if num_copied == len(missing) else missing[num_copied]

    def _free_blocks(self, count: int, leaf: Node | None = None, first: int = 0) -> int:
        """Evict host blocks until `count` are free, if possible; returns how many are free.

        The blocks of `leaf` from `first` on are about to leave the device: they do not count as
        duplicates.
        """
        host = self._host
        in_use: list[Node] = []
        while host.num_free < count and self._duplicated:
            node = next(iter(self._duplicated))
            del self._duplicated[node]
            if not self._drop_duplicates(node, first if node is leaf else len(node.blocks)):
                in_use.append(node)
        self._duplicated.update(dict.fromkeys(in_use))
        while host.num_free < count:
            oldest = next((node for node in self.offloaded if self._can_shrink(node)), None)
            if oldest is None:
                break
            num_kept = max(len(oldest.blocks), oldest.num_blocks - (count - host.num_free))
            end = oldest.num_blocks
            while end > num_kept and not host.is_copied(oldest.host_blocks[end - 1]):
                end -= 1
            self._cut(oldest, end)
        return host.num_free

    def _drop_duplicates(self, node: Node, end: int) -> bool:
        """Evict the first `end` host blocks of a node; False if copies in flight keep some."""
        drops_all = True
        for i, block in enumerate(node.host_blocks[:end]):
            if block == NO_BLOCK:
                continue
            if self._host.is_copied(block):
                drops_all = False
                continue
            self._host.release([block])
            node.host_blocks[i] = NO_BLOCK
        return drops_all

    def _can_shrink(self, node: Node) -> bool:
        return not node.children and not self._host.is_copied(node.host_blocks[-1])
