"""The gates for sequences with a grammar: their worker must know it, and have compiled it."""

from collections import Counter, OrderedDict

from taco_proto.grammars import Grammar, GrammarCommand, GrammarReady
from taco_scheduler.admission.fair_share import Share
from taco_scheduler.state.sequence import Sequence

# Grammars of one tenant that a worker is asked to compile at once, small and large ones each. It
# compiles both kinds in the order in which they come, each in a thread.
MAX_COMPILING = 8

# Whose grammars, and whether large ones: a small one does not wait for large ones.
_Line = tuple[Share, bool]


class GrammarGate:
    """The grammars of the sequences assigned to one worker.

    A sequence's prompt runs while the worker compiles. The first row that samples waits.

    Attributes:
        known: holds the sequences whose grammar the worker does not know yet.
        generation: see `Gate`.
    """

    def __init__(self) -> None:
        self.known = KnownGrammars()
        self.generation = 0
        self._num_users: Counter[bytes] = Counter()
        self._ready: set[bytes] = set()

    def add(self, sequence: Sequence) -> None:
        """Record that a sequence was assigned to the worker."""
        grammar = sequence.request.grammar
        if grammar is not None:
            self._num_users[grammar.hash] += 1
            self.known.add(grammar, sequence.request.share)

    def remove(self, sequence: Sequence) -> None:
        """Record that a sequence ended or left the worker."""
        grammar = sequence.request.grammar
        if grammar is None:
            return
        self._num_users[grammar.hash] -= 1
        if not self._num_users[grammar.hash]:
            del self._num_users[grammar.hash]
            self._ready.discard(grammar.hash)
            self.known.remove(grammar)

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether no step may sample the sequence yet."""
        grammar = sequence.request.grammar
        return grammar is not None and grammar.hash not in self._ready

    def note_compiled(self, ready: GrammarReady) -> None:
        """Record that the worker has compiled a grammar, or could not.

        A grammar without sequences is ignored.
        """
        self.known.note_compiled(ready.hash)
        if not ready.error and self.known.has(ready.hash):
            self._ready.add(ready.hash)
            self.generation += 1

    def take_command(self) -> GrammarCommand | None:
        """What the worker has to know before the next step; None: nothing new."""
        return self.known.take_command()


class KnownGrammars:
    """The grammars that one worker knows, and those that it is to compile.

    Tenants take turns, and each has a limit: one with many large grammars does not hold up the
    others.

    Attributes:
        generation: see `Gate`.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._hashes: set[bytes] = set()
        self._released: list[bytes] = []
        self._wanted: dict[bytes, Grammar] = {}
        self._lines: OrderedDict[_Line, dict[bytes, None]] = OrderedDict()
        self._compiling: dict[bytes, _Line] = {}
        self._num_compiling: Counter[_Line] = Counter()

    def add(self, grammar: Grammar, share: Share) -> None:
        """Let the worker compile a grammar unless it knows it, in a turn of the tenant `share`."""
        if grammar.hash not in self._hashes:
            self._wanted[grammar.hash] = grammar
            self._lines.setdefault((share, grammar.is_large), {})[grammar.hash] = None

    def remove(self, grammar: Grammar) -> None:
        """Let the worker release a grammar, which has no users any more."""
        self._wanted.pop(grammar.hash, None)
        if grammar.hash in self._hashes:
            self._hashes.remove(grammar.hash)
            self._released.append(grammar.hash)

    def has(self, grammar_hash: bytes) -> bool:
        """Whether the worker was asked to compile a grammar that is in use."""
        return grammar_hash in self._hashes

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether no step may have the sequence yet: its grammar has to be sent before."""
        grammar = sequence.request.grammar
        return grammar is not None and grammar.hash not in self._hashes

    def note_compiled(self, grammar_hash: bytes) -> None:
        """Record that the worker has compiled a grammar, or could not."""
        line = self._compiling.pop(grammar_hash, None)
        if line is not None:
            self._num_compiling[line] -= 1
            if not self._num_compiling[line]:
                del self._num_compiling[line]

    def take_command(self) -> GrammarCommand | None:
        """What the worker has to know before the next step; None: nothing new."""
        compiled = self._take_wanted() if self._lines else []
        if not (compiled or self._released):
            return None
        command = GrammarCommand(tuple(compiled), tuple(self._released))
        self._released.clear()
        return command

    def _take_wanted(self) -> list[Grammar]:
        """The grammars to compile now; those of tenants beyond their limit stay."""
        taken: list[Grammar] = []
        idle_turns = 0
        while idle_turns < len(self._lines):
            line, hashes = next(iter(self._lines.items()))
            grammar = self._next_of(line, hashes)
            if not hashes:
                del self._lines[line]
            else:
                self._lines.move_to_end(line)
            if grammar is None:
                idle_turns += bool(hashes)
                continue
            idle_turns = 0
            taken.append(grammar)
        if taken:
            self.generation += 1
        return taken

    def _next_of(self, line: _Line, hashes: dict[bytes, None]) -> Grammar | None:
        while hashes and self._num_compiling[line] < MAX_COMPILING:
            grammar_hash = next(iter(hashes))
            del hashes[grammar_hash]
            grammar = self._wanted.pop(grammar_hash, None)
            if grammar is None:  # another tenant's turn came before, or its users have left
                continue
            self._hashes.add(grammar_hash)
            if grammar_hash not in self._compiling:
                self._compiling[grammar_hash] = line
                self._num_compiling[line] += 1
            return grammar
        return None
