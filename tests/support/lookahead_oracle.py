"""The lookahead cache by its rules, with dictionaries and lists.

Nothing here is bounded by memory: what a full table does is tested apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from taco_kernels.native.lookahead import (
    MAX_TREE,
    NUM_LENGTHS,
    NUM_SHARES,
    WEIGHT_ONE,
    CacheOptions,
    Mode,
)

MOST_MATCHES = 8
LONGEST_MATCH = 32
MOST_RAW_MATCHES = 64
LEAST_CHANCE = 0.02


@dataclass
class Entry:
    token: int
    weight: int
    stamp: int


@dataclass
class Sequence:
    salt: str
    tokens: list[int] = field(default_factory=list)  # what contexts are made of
    local: list[int] = field(default_factory=list)
    length: int = 0
    hits: float = 0.0
    pending: list[int] = field(default_factory=list)


@dataclass
class Node:
    parent: int  # -1 is the root
    token: int
    kind: int
    chance: float
    depth: int
    path: list[int]
    matches: list[tuple[int, int]]  # position behind, length
    reach: int


def length_class(length: int) -> int:
    return next(i for i, most in enumerate((1, 2, 4, 6, 15, 10**9)) if length <= most)


def share_class(weight: int, total: int) -> int:
    share = Fraction(weight, total + WEIGHT_ONE)
    bounds = (Fraction(4, 5), Fraction(1, 2), Fraction(1, 5), Fraction(0))
    return next(i for i, least in enumerate(bounds) if share >= least)


class LookaheadOracle:
    def __init__(self, options: CacheOptions, priors: np.ndarray) -> None:
        self.options = options
        self.priors = [float(prior) for prior in priors]
        self.cells: dict[tuple[str, tuple[int, ...]], list[Entry]] = {}
        self.clock = 0
        self.sequences: dict[int, Sequence] = {}

    # ------------------------------------------------------------------ what is learned

    def join(
        self, slot: int, prompt: list[int], output: list[int], salt: str = "", skips: bool = False
    ) -> None:
        sequence = Sequence(salt, hits=float(self.options.copy_length))
        self.sequences[slot] = sequence
        for token in prompt:
            if not output and not skips:
                self._learn(sequence, token)
            self._advance(sequence, token, is_local=not skips)
        for token in output:
            self._advance(sequence, token, is_local=True)
            self._end(sequence, token)

    def append(self, slot: int, tokens: list[int]) -> None:
        sequence = self.sequences[slot]
        if sequence.pending and tokens:
            self._settle(sequence, tokens)
        for token in tokens:
            self._learn(sequence, token)
            self._advance(sequence, token, is_local=True)
            self._end(sequence, token)

    def _advance(self, sequence: Sequence, token: int, is_local: bool) -> None:
        sequence.length += 1
        if sequence.length > self.options.max_len:
            return
        sequence.tokens.append(token)
        if is_local:
            sequence.local.append(token)

    def _end(self, sequence: Sequence, token: int) -> None:
        if token in self.options.eos_ids:
            sequence.tokens, sequence.local = [], []

    def _learn(self, sequence: Sequence, token: int) -> None:
        options, tokens = self.options, sequence.tokens
        is_too_short = len(tokens) < options.min_match
        if not options.has_table or is_too_short or sequence.length >= options.max_len:
            return
        self.clock += 1
        for length in range(options.min_match, min(options.max_match, len(tokens)) + 1):
            cell = self.cells.setdefault((sequence.salt, tuple(tokens[-length:])), [])
            self._count(cell, token)

    def _count(self, cell: list[Entry], token: int) -> None:
        for entry in cell:
            if entry.token == token:
                entry.weight = min(entry.weight + WEIGHT_ONE, 2**16 - 1)
                entry.stamp = self.clock
                return
        if len(cell) >= self.options.cell_size:
            self._give_up(cell)
        cell.append(Entry(token, WEIGHT_ONE, self.clock))

    def _give_up(self, cell: list[Entry]) -> None:
        weak = [e for e in cell if e.weight < round(self.options.threshold * WEIGHT_ONE)]
        if weak:
            cell.remove(min(weak, key=lambda e: e.stamp))
            return
        for entry in cell:
            entry.weight = max(entry.weight * round(self.options.decay * 2**16) >> 16, 1)
        cell.remove(min(cell, key=lambda e: (e.weight, e.stamp)))

    # ------------------------------------------------------------------ drafts

    def draft(self, rows: list[tuple[int, int]]) -> list[list[tuple[int, int, int]]]:
        """For each (slot, max_nodes) the tree's (token, parent, class), depth first."""
        trees = [self._draft_row(self.sequences[slot], most) for slot, most in rows]
        if self.options.target_parallelism:
            trees = self._shortened([self.sequences[slot] for slot, _ in rows], trees)
        return trees

    def _draft_row(self, sequence: Sequence, max_nodes: int) -> list[tuple[int, int, int]]:
        options = self.options
        depth = min(options.copy_length, options.max_len - sequence.length)
        max_nodes = min(max_nodes, MAX_TREE)
        nodes: list[Node] = []
        if depth > 0 and max_nodes > 0:
            if options.mode != Mode.RAW:
                nodes = self._turbo(sequence, max_nodes, depth)
            if options.mode != Mode.TURBO and not nodes:
                nodes = self._raw(sequence, max_nodes, depth)
        return depth_first(nodes)

    def _turbo(self, sequence: Sequence, max_nodes: int, depth: int) -> list[Node]:
        options = self.options
        matches = occurrences(sequence.local, options.min_match)[:MOST_MATCHES]
        root = Node(-2, -1, -1, 1.0, 0, [], matches, options.max_match)
        nodes: list[Node] = []
        candidates = self._children(sequence, root, -1)
        while candidates and len(nodes) < max_nodes:
            best = max(candidates, key=lambda node: node.chance)  # of equals the first
            candidates.remove(best)
            if sum(node.depth == best.depth for node in nodes) == options.max_paths:
                continue
            nodes.append(best)
            if best.depth < depth and best.token not in options.eos_ids:
                candidates += self._children(sequence, best, len(nodes) - 1)
        return nodes

    def _children(self, sequence: Sequence, node: Node, index: int) -> list[Node]:
        options = self.options
        context = [*sequence.tokens, *node.path]
        for length in range(min(options.max_match, len(context)), options.min_match - 1, -1):
            found = self._evidence(sequence, node, tuple(context[-length:]))
            if found:
                return self._candidates(sequence, node, index, length, found)
        return []

    def _evidence(
        self, sequence: Sequence, node: Node, context: tuple[int, ...]
    ) -> tuple[list[tuple[int, int, int, int]], int] | None:
        """(token, weight, latest match, stamp) of all that may follow, and the whole weight."""
        options, length = self.options, len(context)
        cell: list[Entry] = []
        if options.has_table and length <= node.reach:
            cell = self.cells.get((sequence.salt, context), [])
        cell = [entry for entry in cell if entry.token < options.vocab_size]
        total = sum(entry.weight for entry in cell)
        best = sorted(cell, key=lambda e: (-e.weight, -e.stamp))[: options.cell_top]
        weights = {entry.token: entry.weight for entry in best}
        stamps = {entry.token: entry.stamp for entry in best}
        latest: dict[int, int] = {}
        for index, (place, matched) in enumerate(node.matches):
            token = [*sequence.local, *node.path][place]
            if matched < length or token >= options.vocab_size:
                continue
            start = 0 if token in latest else round(options.start_weight * WEIGHT_ONE)
            weights[token] = weights.get(token, 0) + WEIGHT_ONE + start
            total += WEIGHT_ONE + start
            latest.setdefault(token, index)
        if not weights:
            return None
        found = [
            (token, weight, latest.get(token, MOST_MATCHES), stamps.get(token, -1))
            for token, weight in weights.items()
        ]
        found.sort(key=lambda option: (-option[1], option[2], -option[3], option[0]))
        return found[: options.max_paths], total

    def _candidates(
        self,
        sequence: Sequence,
        node: Node,
        index: int,
        length: int,
        found: tuple[list[tuple[int, int, int, int]], int],
    ) -> list[Node]:
        children = []
        options, total = found
        known = [*sequence.local, *node.path]
        for token, weight, match, _ in options:
            is_local = match < MOST_MATCHES
            matched = node.matches[match][1] if is_local else length
            kind = (is_local * NUM_LENGTHS + length_class(matched)) * NUM_SHARES
            kind += share_class(weight, total)
            chance = node.chance * self.priors[kind]
            if chance < LEAST_CHANCE:
                continue
            matches = [(at + 1, size + 1) for at, size in node.matches if known[at] == token]
            path = [*node.path, token]
            reach = min(length + 1, self.options.max_match)
            child = Node(index, token, kind, chance, node.depth + 1, path, matches, reach)
            children.append(child)
        return children

    def _raw(self, sequence: Sequence, max_nodes: int, depth: int) -> list[Node]:
        options, local = self.options, sequence.local
        nodes: list[Node] = []
        num_paths = 0
        for order in range(options.raw_max, options.raw_min - 1, -1):
            for place, matched in occurrences(local, order)[:MOST_RAW_MATCHES]:
                if num_paths == options.raw_paths or len(nodes) == max_nodes:
                    return nodes
                before = len(nodes)
                copied = copy_from(local, place, depth)
                add_path(nodes, self._draftable(copied), matched, max_nodes)
                num_paths += len(nodes) > before
        return nodes

    def _draftable(self, tokens: list[int]) -> list[int]:
        for index, token in enumerate(tokens):
            if token >= self.options.vocab_size:
                return tokens[:index]
            if token in self.options.eos_ids:
                return tokens[: index + 1]
        return tokens

    # ------------------------------------------------------------------ target_parallelism

    def _settle(self, sequence: Sequence, tokens: list[int]) -> None:
        right = 0
        for token, draft in zip(tokens, sequence.pending, strict=False):
            if token != draft:
                break
            right += 1
        if right < len(tokens) or right == len(sequence.pending):
            sequence.hits += (right - sequence.hits) / 4
        sequence.pending = []

    def _shortened(
        self, sequences: list[Sequence], trees: list[list[tuple[int, int, int]]]
    ) -> list[list[tuple[int, int, int]]]:
        room = max(self.options.target_parallelism - len(trees), 0)
        if sum(map(len, trees)) > room:
            whole = 0.0
            for sequence in sequences:
                whole += 1 + sequence.hits
            shares = [int(room * (1 + sequence.hits) / whole) for sequence in sequences]
            trees = [tree[:share] for tree, share in zip(trees, shares, strict=True)]
        for sequence, tree in zip(sequences, trees, strict=True):
            sequence.pending = []
            for index, (token, parent, _) in enumerate(tree):
                if parent != index - 1:
                    break
                sequence.pending.append(token)
        return trees


def occurrences(tokens: list[int], order: int) -> list[tuple[int, int]]:
    """Positions behind earlier places of the last `order` tokens, the latest first, and how many
    tokens agree there."""
    last = len(tokens) - 1
    found = []
    for end in range(last - 1, order - 2, -1):
        length = 0
        while (
            length < min(end + 1, LONGEST_MATCH) and tokens[end - length] == tokens[last - length]
        ):
            length += 1
        if length >= order:
            found.append((end + 1, length))
    return found


def copy_from(tokens: list[int], place: int, count: int) -> list[int]:
    known = list(tokens)
    for i in range(count):
        known.append(known[place + i])
    return known[len(tokens) :]


def add_path(nodes: list[Node], path: list[int], matched: int, max_nodes: int) -> None:
    parent = -1
    for depth, token in enumerate(path):
        same = (i for i, n in enumerate(nodes) if n.parent == parent and n.token == token)
        child = next(same, None)
        if child is None:
            if len(nodes) == max_nodes:
                return
            kind = 2 * NUM_LENGTHS * NUM_SHARES + length_class(matched + depth)
            nodes.append(Node(parent, token, kind, 1.0, depth + 1, [], [], 0))
            child = len(nodes) - 1
        parent = child


def depth_first(nodes: list[Node]) -> list[tuple[int, int, int]]:
    """(token, parent, class), of siblings the first that was added."""
    out: list[tuple[int, int, int]] = []

    def visit(index: int, place: int) -> None:
        for child, node in enumerate(nodes):
            if node.parent == index:
                out.append((node.token, place, node.kind))
                visit(child, len(out) - 1)

    visit(-1, -1)
    return out
