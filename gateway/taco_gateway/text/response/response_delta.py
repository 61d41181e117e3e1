"""New parts of an answer: reasoning, content and tool calls."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class CallDelta:
    """New text of one tool call.

    Attributes:
        index: of the call in its answer.
        id, name: on the first delta of the call only.
        arguments: a fragment of the JSON text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class ResponseDelta:
    """New parts of one answer, in the order reasoning, content, calls.

    Attributes:
        num_reasoning_tokens: tokens of the reasoning with its markers.
    """

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)
    num_reasoning_tokens: int = 0

    def extend(self, later: "ResponseDelta") -> None:
        """Appends a later delta of the same answer."""
        self.reasoning += later.reasoning
        self.content += later.content
        self.calls += later.calls
        self.num_reasoning_tokens += later.num_reasoning_tokens


def whole_calls(deltas: list[CallDelta]) -> list[CallDelta]:
    """One delta for each call, with its whole arguments."""
    fragments: dict[int, list[str]] = {}
    heads: dict[int, CallDelta] = {}
    for delta in deltas:
        heads.setdefault(delta.index, delta)
        fragments.setdefault(delta.index, []).append(delta.arguments)
    return [
        CallDelta(index, head.id, head.name, "".join(fragments[index]))
        for index, head in heads.items()
    ]
