"""Finds grammars of which no finite text can be derived, such as `start: "a" start`.

A model would write until its length ends. llguidance compiles such a grammar: each beginning of a
text has a continuation.
"""

from collections.abc import Iterator

from taco_gateway.text.grammar.lark_reader import START, Node, NotReadableError, Rules, read_rules


class EndlessGrammarError(ValueError):
    """No finite text can be derived of a grammar. The argument is the rule that needs itself."""


def without_endless_rules(text: str) -> str:
    """The grammar without the alternatives of which no finite text can be derived.

    Takes time in proportion to the size of the text. A grammar in a notation that is not known
    stays as it is.

    Args:
        text: in Lark notation.

    Raises:
        EndlessGrammarError: no finite text can be derived of the whole grammar.
    """
    try:
        rules = read_rules(text)
    except NotReadableError:
        return text
    finite = _Finite(rules)
    if START in rules and not finite.has(START):
        raise EndlessGrammarError(finite.endless_rule(START)[1])
    cuts = sorted(_cuts(rules, finite))
    if not cuts:
        return text
    kept, at = [], 0
    for start, end, replacement in cuts:
        kept += [text[at:start], replacement]
        at = end
    return "".join([*kept, text[at:]])


class _Finite:
    """Which parts of a grammar have a finite text.

    The least fixed point: a part becomes finite when what it needs has (Dowling and Gallier 1984,
    "Linear-time algorithms for testing the satisfiability of propositional Horn formulae").
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._ids: set[int] = set()
        self._num_missing: dict[int, int] = {}
        self._users: dict[int, list[Node]] = {}
        ready: list[Node] = []
        nodes = list(rules.values())
        while nodes:
            node = nodes.pop()
            children = [rules.get(c) if isinstance(c, tuple) else c for c in node.children]
            known = [child for child in children if child is not None]  # others are errors
            self._num_missing[id(node)] = len(known) if node.needs_all else min(len(known), 1)
            for child in known:
                self._users.setdefault(id(child), []).append(node)
            if not self._num_missing[id(node)]:
                ready.append(node)
            nodes += [child for child in node.children if isinstance(child, Node)]
            nodes += node.optional
        while ready:
            node = ready.pop()
            self._ids.add(id(node))
            for user in self._users.get(id(node), ()):
                self._num_missing[id(user)] -= 1
                if self._num_missing[id(user)] == 0:
                    ready.append(user)

    def has(self, part: "Node | tuple[int, str]") -> bool:
        node = self._rules.get(part) if isinstance(part, tuple) else part
        return node is None or id(node) in self._ids

    def endless_rule(self, key: tuple[int, str]) -> tuple[int, str]:
        """A rule that needs itself, of those that an endless rule needs."""
        seen: set[tuple[int, str]] = set()
        while key not in seen:
            seen.add(key)
            part: Node | tuple[int, str] = self._rules[key]
            while isinstance(part, Node):
                part = next(child for child in part.children if not self.has(child))
            key = part
        return key


def _cuts(rules: Rules, finite: _Finite) -> Iterator[tuple[int, int, str]]:
    """The places to leave out, with what to write there instead."""
    nodes: list[Node] = []
    for rule in rules.values():
        if finite.has(rule):
            nodes.append(rule)
        else:
            yield rule.start, rule.end, ""
    while nodes:
        node = nodes.pop()
        parts = [child for child in node.children if isinstance(child, Node)]
        if not node.needs_all:
            has_kept = False
            for index, part in enumerate(parts):
                if finite.has(part):
                    has_kept = True
                elif has_kept:
                    yield parts[index - 1].end, part.end, ""
                else:
                    yield part.start, parts[index + 1].start, ""
        nodes += [part for part in parts if finite.has(part)]
        for part in node.optional:
            if finite.has(part):
                nodes.append(part)
            else:
                yield part.start, part.end, '""'
