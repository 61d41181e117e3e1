"""The gate for sequences with a grammar: their worker must have compiled it first."""

from taco_proto.grammars import Grammar, GrammarCommand, GrammarReady
from taco_scheduler.state.sequence import Sequence


class GrammarGate:
    """The grammars of the sequences assigned to one worker.

    A sequence's prompt runs while the worker compiles. The first row that samples waits.
    """

    def __init__(self) -> None:
        self._num_users: dict[bytes, int] = {}
        self._ready: set[bytes] = set()
        self._to_compile: dict[bytes, Grammar] = {}
        self._released: list[bytes] = []

    def add(self, sequence: Sequence) -> None:
        """Record that a sequence was assigned to the worker."""
        grammar = sequence.request.grammar
        if grammar is None:
            return
        num_users = self._num_users.get(grammar.hash, 0)
        if not num_users:
            self._to_compile[grammar.hash] = grammar
        self._num_users[grammar.hash] = num_users + 1

    def remove(self, sequence: Sequence) -> None:
        """Record that a sequence ended or left the worker."""
        grammar = sequence.request.grammar
        if grammar is None:
            return
        self._num_users[grammar.hash] -= 1
        if self._num_users[grammar.hash]:
            return
        del self._num_users[grammar.hash]
        self._ready.discard(grammar.hash)
        if self._to_compile.pop(grammar.hash, None) is None:  # the worker knows it
            self._released.append(grammar.hash)

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether no step may sample the sequence yet."""
        grammar = sequence.request.grammar
        return grammar is not None and grammar.hash not in self._ready

    def note_ready(self, ready: GrammarReady) -> None:
        """Record that the worker has compiled a grammar; one without sequences is ignored."""
        if ready.hash in self._num_users and ready.hash not in self._to_compile:
            self._ready.add(ready.hash)

    def take_command(self) -> GrammarCommand | None:
        """What the worker has to know before the next step; None: nothing new."""
        if not (self._to_compile or self._released):
            return None
        command = GrammarCommand(tuple(self._to_compile.values()), tuple(self._released))
        self._to_compile.clear()
        self._released.clear()
        return command
