"""Which runs of the radix tree the host tier holds, and which of them go when it is full."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from taco_scheduler.kv.host_blocks import HostBlocks
from taco_scheduler.kv.radix_node import NO_BLOCK, Node


class HostCache:
    """Moves runs from the device to the host tier.

    When it is full it gives up what the device holds as well, then the tails of the leaves that
    left the device longest ago.

    Args:
        min_uses: what was used less often than that is not worth a copy.
        cut: takes a node's tail out of the tree, with all that continues it.

    Attributes:
        offloaded: the nodes that have blocks below the device, in the order in which they got them:
            a node stands behind its descendants.
    """

    def __init__(self, host: HostBlocks, min_uses: int, cut: Callable[[Node, int], None]) -> None:
        self.offloaded: OrderedDict[Node, None] = OrderedDict()
        self._duplicated: dict[Node, None] = {}  # the device may hold blocks of theirs, too
        self._host = host
        self.min_uses = min_uses
        self._cut = cut

    def offload(self, leaf: Node, first: int) -> None:
        """Takes the device blocks from `first` on away from `leaf`; what the host cannot hold of
        them leaves the tree.
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
        """Copies blocks to the host that stay on the device, the first ones if there is no room for
        all; returns how many.
        """
        num_copied = min(len(indexes), self._make_room(len(indexes)))
        if num_copied:
            node.host_blocks = node.host_blocks or [NO_BLOCK] * node.num_blocks
            targets = self._host.offload([node.blocks[i] for i in indexes[:num_copied]])
            for i, target in zip(indexes, targets, strict=False):
                node.host_blocks[i] = target
            self._duplicated[node] = None
        return num_copied

    def adopt(self, end: Node, host_blocks: list[int]) -> None:
        """Makes the tree the owner of copies of the last blocks of a prefix that ends with `end`,
        which begin at a node's start.
        """
        node: Node | None = end
        while host_blocks:
            assert node is not None
            own = host_blocks[-node.num_blocks :]
            host_blocks = host_blocks[: -node.num_blocks]
            if node.host_blocks:
                self._host.release(own)  # there is a copy, which could not be read yet
            else:
                node.host_blocks = own
            self._duplicated[node] = None
            node = node.parent

    def take(self, count: int) -> list[int]:
        """Empty host blocks, `count` or as many as there is room for."""
        return self._host.take(min(count, self._make_room(count)))

    def note_duplicates(self, node: Node) -> None:
        self._duplicated[node] = None

    def note_split(self, upper: Node, lower: Node) -> None:
        if lower in self._duplicated:
            self._duplicated[upper] = None

    def join(self, runs: list[Node]) -> list[int]:
        """The host blocks of a node that is made of several, all of them on the device; the last
        one stays and gets them.
        """
        for run in runs:
            self.forget(run)
        if not any(run.host_blocks for run in runs):
            return []
        self._duplicated[runs[-1]] = None
        columns = [run.host_blocks or [NO_BLOCK] * len(run.blocks) for run in runs]
        return [block for column in columns for block in column]

    def forget(self, node: Node) -> None:
        """The node is no longer in the tree."""
        self.offloaded.pop(node, None)
        self._duplicated.pop(node, None)

    def drop_unfilled(self, roots: Iterable[Node]) -> None:
        """Host blocks whose copies failed leave the tree."""
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
        """Sees that the host holds the device blocks of `leaf` from `first` on.

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
        num_copied = min(len(missing), self._make_room(len(missing), leaf, first))
        if num_copied and not host_blocks:
            host_blocks = leaf.host_blocks = [NO_BLOCK] * leaf.num_blocks
        targets = host.offload([leaf.blocks[i] for i in missing[:num_copied]])
        for i, target in zip(missing, targets, strict=False):
            host_blocks[i] = target
        return leaf.num_blocks if num_copied == len(missing) else missing[num_copied]

    def _make_room(self, count: int, leaf: Node | None = None, first: int = 0) -> int:
        """Tries to have `count` host blocks free; returns how many are.

        The copies of what `leaf` has from `first` on are about to be the only ones.
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
        """Of the first `end` blocks; False if copies in flight keep some of them."""
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
