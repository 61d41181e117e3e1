"""Collects the parts of one answer while they are read."""

import secrets
import string
from collections.abc import Callable, Collection

from taco_gateway.text.response.cursor import NotACallError
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import CallDelta, ResponseDelta

_ID_CHARS = string.ascii_letters + string.digits
_NUM_ID_CHARS = 24


class Answer:
    """The new parts of an answer, as text without the symbols of marker tokens.

    Args:
        num_id_chars: length of the ids of calls; 0: any.
        max_calls: number of calls that end the answer; None: no limit.

    Attributes:
        known_names: only these functions can be called; None: all.
        num_calls: number of calls that have begun.
        num_whole_calls: number of calls that are complete.
        is_over: the last call that the request allows is complete.
    """

    def __init__(self, markers: MarkerTokens, *, num_id_chars: int, max_calls: int | None) -> None:
        self._decode = markers.decoded
        self._num_id_chars = num_id_chars
        self._max_calls = max_calls
        self._delta = ResponseDelta()
        # Of the new part. `take` joins them, since a whole answer may come at once: appending to
        # the text each time would copy a megabyte of arguments for each of its strings.
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._arguments: list[str] = []  # of the current call
        self._ids: set[str] = set()
        self.content = TrimmedText(self._add_content)
        self.known_names: Collection[str] | None = None
        self.num_calls = 0
        self.num_whole_calls = 0
        self.is_over = False

    def take(self) -> ResponseDelta:
        """The parts that are new since the last call."""
        self._join_arguments()
        delta, self._delta = self._delta, ResponseDelta()
        delta.reasoning, delta.content = "".join(self._reasoning), "".join(self._content)
        self._reasoning.clear()
        self._content.clear()
        return delta

    def count_reasoning_tokens(self, num_tokens: int) -> None:
        self._delta.num_reasoning_tokens += num_tokens

    def add_reasoning(self, text: str) -> None:
        self._reasoning.append(self._decode(text))

    def open_call(self, name: str, own_id: str = "") -> None:
        """Begins a call. Later content is left out, as is white space before the call.

        Args:
            own_id: the id that the model has written; empty: it has written none. An id that an
                earlier call of the answer has is replaced.

        Raises:
            NotACallError: the function is not known.
        """
        if self.known_names is not None and name not in self.known_names:
            raise NotACallError
        if self.num_calls == 0:
            self.content.drop()
        self._join_arguments()
        call_id = self._decode(own_id)
        if not call_id or call_id in self._ids:
            call_id = self._new_id()
        self._ids.add(call_id)
        self._delta.calls.append(CallDelta(self.num_calls, call_id, self._decode(name)))
        self.num_calls += 1

    def _new_id(self) -> str:
        count = self._num_id_chars or _NUM_ID_CHARS
        call_id = "".join(secrets.choice(_ID_CHARS) for _ in range(count))
        return call_id if self._num_id_chars else f"call_{call_id}"

    def add_arguments(self, fragment: str) -> None:
        """Adds text to the arguments of the current call."""
        self._arguments.append(self._decode(fragment))

    def _join_arguments(self) -> None:
        """Puts the new arguments of the current call into the delta."""
        text = "".join(self._arguments)
        self._arguments.clear()
        if not text:
            return
        index = self.num_calls - 1
        last = self._delta.calls[-1] if self._delta.calls else None
        if last is not None and last.index == index:
            last.arguments += text
        else:
            self._delta.calls.append(CallDelta(index, arguments=text))

    def end_call(self) -> None:
        """The current call is complete."""
        self.num_whole_calls += 1
        self.is_over = self._max_calls is not None and self.num_calls >= self._max_calls

    def _add_content(self, text: str) -> None:
        self._content.append(self._decode(text))


class TrimmedText:
    """Holds back white space until it is known whether a marker follows.

    Attributes:
        trims_start: leave out white space before the first other character.
    """

    def __init__(self, sink: Callable[[str], None], *, trims_start: bool = False) -> None:
        self._sink = sink
        self._spaces: list[str] = []
        self._is_dropped = False
        self.trims_start = trims_start

    def add(self, text: str) -> None:
        if self._is_dropped:
            return
        if self.trims_start:
            text = text.lstrip()
            self.trims_start = not text
        kept = text.rstrip()
        if kept:
            self._sink("".join([*self._spaces, kept]))
            self._spaces.clear()
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def end(self) -> None:
        """The text ends here, without a marker: white space belongs to it."""
        self._sink("".join(self._spaces))
        self._spaces.clear()

    def drop(self) -> None:
        """Leaves out the white space at the end and all later text."""
        self._spaces.clear()
        self._is_dropped = True
