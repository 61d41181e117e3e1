"""Canonical grammars: the one form that every constraint of an answer is sent in."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")

HASH_BYTES = 16
MAX_GRAMMAR_BYTES = 2**18
# A larger grammar takes up to a second to compile, others milliseconds.
LARGE_CHARS = 2**15
# Most alternatives at one place of a text, about: a choice has one each, an object four for each of
# its optional properties. A mask of as many takes some milliseconds.
MAX_ALTERNATIVES = 2**13
# Most text that a grammar may force at once: each mask tokenizes what is left of it. The gateway
# checks the bytes at the beginning, a worker the tokens at each place.
MAX_FORCED_BYTES = 2**16
MAX_FORCED_TOKENS = 2**14
# Both ends of a Generate stream keep the texts that were sent last, up to this size.
MAX_KEPT_BYTES = 2**25


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the gateway has validated.

    Attributes:
        text: the grammar as llguidance reads it.
        hash: identifies the text.
    """

    text: str
    hash: bytes

    @property
    def is_large(self) -> bool:
        """Whether compiling it takes long: small grammars do not wait for it."""
        return len(self.text) > LARGE_CHARS

    @classmethod
    def of(cls, text: str) -> "Grammar":
        return cls(text, hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest())


@dataclass(frozen=True, slots=True)
class GrammarCommand:
    """The grammars that a worker compiles, and those that no sequence of it uses any more."""

    compiled: tuple[Grammar, ...] = ()
    released: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class GrammarReady:
    """A worker has compiled a grammar; with an `error` it could not. The text is for clients."""

    hash: bytes
    error: str = ""


class RecentTable(Generic[V]):
    """The values used last, up to a size in bytes. Two tables with the same calls are equal."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[bytes, tuple[V, int]] = OrderedDict()

    def get(self, key: bytes) -> V | None:
        """The value, which counts as used now; None if it is not there."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, value: V, num_bytes: int) -> None:
        """Add a value that is not there. Removes the values used longest ago, never this one."""
        self._entries[key] = (value, num_bytes)
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes and len(self._entries) > 1:
            self._num_bytes -= self._entries.popitem(last=False)[1][1]

    def pop(self, key: bytes) -> V | None:
        """Remove a value and return it; None if it is not there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._num_bytes -= entry[1]
        return entry[0]


class GrammarTable(RecentTable[Grammar]):
    """The grammars of one Generate stream, on either end of it.

    A gateway sends a text only if its own table lacks the grammar. The scheduler's table sees the
    same requests in the same order, and so has what the gateway's has.
    """

    def __init__(self) -> None:
        super().__init__(MAX_KEPT_BYTES)

    def text_to_send(self, grammar: Grammar) -> str:
        """The text, or "" if the other side has it. Counts as sent."""
        if self.get(grammar.hash) is not None:
            return ""
        self.put(grammar.hash, grammar, len(grammar.text))
        return grammar.text

    def receive(self, key: bytes, text: str) -> Grammar:
        """The grammar of a message with this hash and text.

        Raises:
            ValueError: the text is missing and unknown, or is not the text of the hash.
        """
        if text:
            grammar = Grammar.of(text)
            if grammar.hash != key:
                raise ValueError("the text of a grammar does not have its hash")
            if self.get(key) is None:
                self.put(key, grammar, len(text))
            return grammar
        known = self.get(key)
        if known is None:
            raise ValueError("a grammar came without its text")
        return known
