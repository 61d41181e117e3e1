"""Follows the instructions of a pickle without running what it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MAX_NUMBER_DIGITS = 40
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, type] = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG", "BINFLOAT"})
_TEXTS = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING", "UNICODE"})
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT, _GET = ("PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")
_NOTHING = frozenset({"PROTO", "FRAME"})


@dataclass(frozen=True, slots=True)
class Global:
    """A function or class that the pickle names."""

    module: str
    name: str


class _Mark:
    """Where the items of a collection begin on the stack."""


_MARK = _Mark()


class PickleMachine:
    """The stack and the memo of a pickle; `call` and `refer` decide what its objects are.

    Attributes:
        result: set by the last instruction.
    """

    def __init__(
        self, call: Callable[[object, object], object], refer: Callable[[object], object]
    ) -> None:
        """
        Args:
            call: gives the result of a `Global` with arguments.
            refer: gives the object of a persistent id.
        """
        self.result: object = None
        self._call, self._refer = call, refer
        self._stack: list[Any] = []
        self._memo: dict[int, object] = {}

    def run(self, name: str, argument: Any) -> None:
        """Follow one instruction, as `pickletools.genops` gives it.

        Raises:
            ValueError: no file of tensors needs the instruction.
            IndexError, KeyError, TypeError: the stack or the memo lacks what it takes.
        """
        stack = self._stack
        if name in _NUMBERS or name in _TEXTS:
            if isinstance(argument, int) and argument.bit_length() > 4 * _MAX_NUMBER_DIGITS:
                raise ValueError("it has a number of too many digits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _PUT:
            self._memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in _GET:
            stack.append(self._memo[int(argument)])
        elif name == "GLOBAL":
            stack.append(Global(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            last, first = stack.pop(), stack.pop()
            stack.append(Global(str(first), str(last)))
        elif name == "TUPLE":
            stack.append(tuple(self._items()))
        elif name in _SHORT_TUPLES:
            items = [stack.pop() for _ in range(_SHORT_TUPLES[name])]
            stack.append(tuple(reversed(items)))
        elif name == "BINPERSID":
            stack.append(self._refer(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._call(function, arguments))
        elif name == "BUILD":
            stack.pop()  # the attributes of an object, such as `_metadata` of a state dict
        elif name == "STOP":
            self.result = stack.pop()
        elif name not in _NOTHING:
            self._fill(name)

    def _fill(self, name: str) -> None:
        """Add items to the collection below them."""
        stack = self._stack
        if name in ("SETITEM", "SETITEMS"):
            items = self._items() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
            target = stack[-1]
            if not isinstance(target, dict) or len(items) % 2:
                raise ValueError("it sets items of something that is no dictionary")
            for key, value in zip(items[::2], items[1::2], strict=True):
                if not isinstance(key, str | int):
                    raise ValueError(f"it has a key that is a {type(key).__name__}")
                target[key] = value
        elif name in ("APPEND", "APPENDS"):
            items = self._items() if name == "APPENDS" else [stack.pop()]
            if not isinstance(stack[-1], list):
                raise ValueError("it appends to something that is no list")
            stack[-1].extend(items)
        else:
            raise ValueError(f"its pickle has the instruction {name}, which no file of tensors has")

    def _items(self) -> list[Any]:
        """What is on the stack above the last mark, which is removed too."""
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]
