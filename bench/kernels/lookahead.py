"""Lookahead cache: time to learn a token, time to draft for a sequence, and bytes per token.

    python -m bench.kernels.lookahead [--tokens N] [--rounds N] [--save]

Texts are rows of phrases that recur like words of a language (Zipf's law), so that some contexts
are common and most occur once. A cache learns `--tokens` of them. Then 32 sequences are decoded
from more text of the same source: drafts are compared with the text, and the agreeing prefix is
accepted. For comparison, a matcher in plain Python does the same with dictionaries; it gets a
tenth of the tokens, which favors it. Times are CPU time of one thread, Python's call overhead
included. A figure is the median call in the fastest round, because other load only adds time.
"""

import argparse
import gc
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

import numpy as np
import psutil

from bench.record import save_by_isa
from taco_kernels.library import load
from taco_kernels.native.lookahead import CacheOptions, IntArray, LookaheadCache
from taco_worker.speculation.lookahead.acceptance_priors import class_priors

VOCAB_SIZE = 150_000
NUM_PHRASES = 300_000
CHUNK = 4096  # tokens of a text
NUM_ROWS = 32
PROMPT = 512
NUM_STEPS = 300
COPY_LENGTH = 7
LEARNED = "learned in bulk, µs a token"

P = ParamSpec("P")
R = TypeVar("R")
MATCHES = range(7, 1, -1)


def draw_zipf(rng: np.random.Generator, count: int, size: int) -> IntArray:
    """Draws ranks below `size`; rank r has a probability proportional to 1 / r."""
    return (np.power(float(size), rng.random(count)) - 1).astype(np.int32)


class Source:
    """Endless texts."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._lengths = self._rng.integers(2, 20, NUM_PHRASES)
        self._ends = np.cumsum(self._lengths)
        self._tokens = draw_zipf(self._rng, int(self._ends[-1]), VOCAB_SIZE - 3) + np.int32(3)

    def draw(self, num_tokens: int) -> IntArray:
        phrases = draw_zipf(self._rng, num_tokens // 4 + 64, NUM_PHRASES)
        lengths = self._lengths[phrases]
        num_needed = int(np.searchsorted(np.cumsum(lengths), num_tokens)) + 1
        phrases, lengths = phrases[:num_needed], lengths[:num_needed]
        firsts = np.cumsum(lengths) - lengths
        begins = self._ends[phrases] - lengths
        places = np.arange(lengths.sum()) + np.repeat(begins - firsts, lengths)
        return np.ascontiguousarray(self._tokens[places][:num_tokens])


Tree = list[tuple[int, int]]  # (parent, token), depth first; the parent of the first node is -1


class Matcher(Protocol):
    def learn(self, text: IntArray) -> None: ...

    def join(self, slot: int, text: IntArray) -> None: ...

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None: ...

    def draft(self, slots: IntArray) -> Callable[[], list[Tree]]:
        """Returns the draft tree of each sequence; used by this benchmark only."""
        ...


class OurCache:
    def __init__(self, num_tokens: int, num_paths: int) -> None:
        options = CacheOptions(
            num_slots=NUM_ROWS,
            max_len=1 << 20,
            vocab_size=VOCAB_SIZE,
            eos_ids=(2,),
            num_tokens=num_tokens,
            max_paths=num_paths,
            start_weight=10.0 if num_paths > 1 else 0.0,
        )
        self.cache = LookaheadCache(load(1), options, class_priors())
        self.num_nodes = num_paths * COPY_LENGTH

    def learn(self, text: IntArray) -> None:
        self.cache.learn(np.array([text.size], np.int32), text, ())

    def join(self, slot: int, text: IntArray) -> None:
        size = np.array([text.size], np.int32)
        self.cache.join(np.array([slot], np.int32), size, size, text, ())

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        self.cache.append(slots, num_tokens, token_ids)

    def draft(self, slots: IntArray) -> Callable[[], list[Tree]]:
        drafts = self.cache.draft(slots, np.full(slots.size, self.num_nodes, np.int32))

        def trees() -> list[Tree]:
            nodes = list(zip(drafts.parents.tolist(), drafts.token_ids.tolist(), strict=True))
            sizes = drafts.num_nodes.tolist()
            ends = np.cumsum(drafts.num_nodes).tolist()
            return [nodes[end - size : end] for size, end in zip(sizes, ends, strict=True)]

        return trees


class PythonMatcher:
    """A matcher in plain Python: for every context of 7 to 2 tokens, a Counter of the next
    token.
    """

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], Counter[int]] = {}
        self._rows: dict[int, list[int]] = {}

    def learn(self, text: IntArray) -> None:
        self._learn(text.tolist(), 0)

    def join(self, slot: int, text: IntArray) -> None:
        self._rows[slot] = text.tolist()
        self._learn(self._rows[slot], 0)

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        tokens = iter(token_ids.tolist())
        for slot, count in zip(slots.tolist(), num_tokens.tolist(), strict=True):
            row = self._rows[slot]
            first = len(row)
            row += itertools.islice(tokens, count)
            self._learn(row, first)

    def draft(self, slots: IntArray) -> Callable[[], list[Tree]]:
        drafts = [self._draft(self._rows[slot]) for slot in slots.tolist()]
        return lambda: [list(enumerate(draft, start=-1)) for draft in drafts]

    def _learn(self, tokens: list[int], first: int) -> None:
        for end in range(first, len(tokens)):
            for length in MATCHES:
                if length <= end:
                    context = tuple(tokens[end - length : end])
                    self._followers.setdefault(context, Counter())[tokens[end]] += 1

    def _draft(self, row: list[int]) -> list[int]:
        tokens = row[-MATCHES[0] :]
        num_known = len(tokens)
        for _ in range(COPY_LENGTH):
            contexts = (tuple(tokens[-length:]) for length in MATCHES)
            found = next((c for context in contexts if (c := self._followers.get(context))), None)
            if found is None:
                break
            tokens.append(max(found, key=found.__getitem__))
        return tokens[num_known:]


class Stopwatch:
    """CPU time of calls that each process several items."""

    def __init__(self) -> None:
        self._costs: list[float] = []

    def time(self, num_things: int, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        start = time.thread_time()
        result = call(*args, **kwargs)
        self._costs.append((time.thread_time() - start) / num_things)
        return result

    def microseconds(self) -> float:
        """Returns the microseconds per item of the median call."""
        return 1e6 * statistics.median(self._costs)


def num_accepted(tree: Tree, ahead: list[int]) -> int:
    """Returns the length of the draft path that agrees with the text."""
    node, count = -1, 0
    for index, (parent, token) in enumerate(tree):
        if parent == node and token == ahead[count]:
            node, count = index, count + 1
    return count


def learn(matcher: Matcher, source: Source, num_tokens: int) -> float:
    """Returns microseconds per token."""
    learning = Stopwatch()
    for _ in range(num_tokens // CHUNK):
        learning.time(CHUNK, matcher.learn, source.draw(CHUNK))
    return learning.microseconds()


def decode(matcher: Matcher, source: Source) -> dict[str, float]:
    """Returns microseconds and accepted tokens per draft."""
    appending, drafting = Stopwatch(), Stopwatch()
    texts = [source.draw(PROMPT + NUM_STEPS * (COPY_LENGTH + 1)) for _ in range(NUM_ROWS)]
    slots = np.arange(NUM_ROWS, dtype=np.int32)
    places = [PROMPT] * NUM_ROWS
    for slot, text in enumerate(texts):
        matcher.join(slot, text[:PROMPT])
    for _ in range(NUM_STEPS):
        trees = drafting.time(NUM_ROWS, matcher.draft, slots)()
        new = []
        for slot, tree in enumerate(trees):
            place = places[slot]
            ahead = texts[slot][place : place + COPY_LENGTH + 1]
            new.append(ahead[: num_accepted(tree, ahead.tolist()) + 1])
            places[slot] += new[-1].size
        sizes = np.array([tokens.size for tokens in new], dtype=np.int32)
        appending.time(int(sizes.sum()), matcher.append, slots, sizes, np.concatenate(new))

    num_drafts = NUM_STEPS * NUM_ROWS
    num_appended = sum(places) - PROMPT * NUM_ROWS
    return {
        "appended, 32 sequences at a time, µs a token": appending.microseconds(),
        "drafted, 32 sequences at a time, µs each": drafting.microseconds(),
        "accepted tokens of a draft": num_appended / num_drafts - 1,
    }


def resident_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def measure_ours(num_tokens: int, num_paths: int) -> dict[str, float]:
    source, ours = Source(seed=1), OurCache(num_tokens, num_paths)
    found = {LEARNED: learn(ours, source, num_tokens)} | decode(ours, source)
    num_bytes = ours.cache.table_bytes + ours.cache.local_bytes
    found["memory, bytes a token"] = num_bytes / num_tokens
    learn(ours, source, num_tokens)
    found["learned by a full table, µs a token"] = learn(ours, source, num_tokens // 5)
    return found


def measure_python(num_tokens: int) -> dict[str, float]:
    before = resident_bytes()
    source, matcher = Source(seed=1), PythonMatcher()
    found = {LEARNED: learn(matcher, source, num_tokens)} | decode(matcher, source)
    found["memory, bytes a token"] = (resident_bytes() - before) / num_tokens
    return found


def least(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(min(found[name] for found in rounds), 3) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tokens",
        type=int,
        default=5_000_000,
        help="tokens that the cache learns (default %(default)s)",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each case (default %(default)s)"
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    arguments = parser.parse_args()

    tokens = arguments.tokens
    cases: dict[str, Callable[[], dict[str, float]]] = {
        f"{tokens:,} tokens, 1 path": lambda: measure_ours(tokens, 1),
        f"{tokens:,} tokens, 2 paths": lambda: measure_ours(tokens, 2),
        f"plain Python, {tokens // 10:,} tokens": lambda: measure_python(tokens // 10),
    }
    figures: dict[str, object] = {}
    for case, run in cases.items():
        figures[case] = found = least([run() for _ in range(arguments.rounds)])
        print(case)
        for name, value in found.items():
            print(f"    {name:48}{value:10.3f}", flush=True)
    if arguments.save:
        print(save_by_isa("lookahead", figures))


if __name__ == "__main__":
    main()
