"""Reads tool calls in Python, and writes their arguments as JSON while they arrive.

Nothing is evaluated: only literals are read. The grammar is that of the Python language reference,
sections "String and Bytes literals" and "Numeric literals".
"""

import ast
import json
import re
import unicodedata
from collections.abc import Callable, Generator

from taco_gateway.text.response.call_readers import CallSink
from taco_gateway.text.response.cursor import MAX_NAME_CHARS, Cursor, NotACallError, Texts

Sink = Callable[[str], None]

_NAME = re.compile(r"\w[\w.-]*")
_NAME_ENDS = Texts(("(", ")", "[", "]", "{", "}", "'", '"', "=", ","))
_SCALAR_STOP = re.compile(r"[],:)}\s]")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PYTHON_NUMBER = re.compile(r"[-+]?[0-9a-fA-FxXoO._+-]{1,4300}")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false"}
_CONSTANTS["null"] = "null"
_QUOTES = ("'", '"')
_PREFIXES = ("r", "R", "u", "U")
_ESCAPES = {
    "\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n",
    "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_NUM_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_CLOSING = {"[": "]", "{": "}"}


class PythonCallReader:
    """Reads `name(key=literal, …)`."""

    def read(self, cursor: Cursor, sink: CallSink) -> Generator[None, None, None]:
        name, end = yield from _name(cursor)
        if end != "(":
            raise NotACallError
        opening = "{"
        while True:
            yield from cursor.spaces()
            if (yield from cursor.peek()) == ")":
                yield from cursor.chars(1)
                break
            key, end = yield from _name(cursor)
            if end != "=":
                raise NotACallError
            if opening == "{":
                sink.open(name)
            sink.arguments(f"{opening}{_quoted(key)}: ")
            opening = ", "
            yield from _Literal(cursor, sink.arguments).read()
            yield from _comma_or(cursor, ")")
        if opening == "{":
            sink.open(name)
        sink.arguments("{}" if opening == "{" else "}")


class _Literal:
    """Reads one literal, which may be nested to any depth, and writes it as JSON."""

    def __init__(self, cursor: Cursor, sink: Sink) -> None:
        self._cursor = cursor
        self._sink = sink
        self._closing: list[str] = []  # brackets of the open lists and dicts

    def read(self) -> Generator[None, None, None]:
        while True:
            yield from self._value()
            while True:
                if not self._closing:
                    return
                yield from _comma_or(self._cursor, self._closing[-1])
                if (yield from self._cursor.peek()) != self._closing[-1]:
                    break
                yield from self._close()
            self._sink(", ")
            if self._closing[-1] == "}":
                yield from self._key()

    def _value(self) -> Generator[None, None, None]:
        """Reads a value, or the beginning of one up to its first scalar."""
        while True:
            yield from self._cursor.spaces()
            mark = yield from self._cursor.peek()
            if mark not in _CLOSING:
                yield from self._scalar(mark)
                return
            self._sink((yield from self._cursor.chars(1)))
            self._closing.append(_CLOSING[mark])
            yield from self._cursor.spaces()
            if (yield from self._cursor.peek()) == _CLOSING[mark]:
                yield from self._close()
                return
            if mark == "{":
                yield from self._key()

    def _close(self) -> Generator[None, None, None]:
        self._sink((yield from self._cursor.chars(1)))
        self._closing.pop()

    def _key(self) -> Generator[None, None, None]:
        yield from self._cursor.spaces()
        mark = yield from self._cursor.peek()
        if mark in _QUOTES or mark in _PREFIXES:
            yield from self._scalar(mark)
        else:
            parts: list[str] = []
            yield from _number_or_constant(self._cursor, parts.append)
            self._sink(f'"{"".join(parts)}"')
        yield from self._cursor.spaces()
        if (yield from self._cursor.chars(1)) != ":":
            raise NotACallError
        self._sink(": ")

    def _scalar(self, mark: str) -> Generator[None, None, None]:
        is_raw = False
        if mark and mark in _PREFIXES:
            is_raw = mark in "rR"
            yield from self._cursor.chars(1)
            mark = yield from self._cursor.peek()
            if mark not in _QUOTES:
                raise NotACallError
        if mark in _QUOTES:
            yield from _string(self._cursor, self._sink, is_raw=is_raw)
        else:
            yield from _number_or_constant(self._cursor, self._sink)


def _string(cursor: Cursor, sink: Sink, *, is_raw: bool) -> Generator[None, None, None]:
    quote = yield from cursor.chars(1)
    sink('"')
    if (yield from cursor.peek()) == quote:
        yield from cursor.chars(1)
        if (yield from cursor.peek()) != quote:
            sink('"')
            return
        yield from cursor.chars(1)
        closing = Texts((quote * 3, "\\"))
    else:
        closing = Texts((quote, "\\"))
    while True:
        end = yield from cursor.until(closing, lambda text: sink(_quoted(text)[1:-1]))
        if not end:
            raise NotACallError
        if end != "\\":
            sink('"')
            return
        if is_raw:
            sink(_quoted("\\" + (yield from cursor.chars(1)))[1:-1])
            continue
        char = yield from _escape(cursor)
        is_half = "\ud800" <= char <= "\udfff"  # unescaped it would read as a marker token
        sink(json.dumps(char, ensure_ascii=is_half)[1:-1])


def _escape(cursor: Cursor) -> Generator[None, None, str]:
    """The characters of an escape sequence whose backslash has been read."""
    char = yield from cursor.chars(1)
    if char in _NUM_HEX_DIGITS:
        count = _NUM_HEX_DIGITS[char]
        digits = yield from cursor.chars(count)
        if not re.fullmatch(f"[0-9a-fA-F]{{{count}}}", digits) or int(digits, 16) > 0x10FFFF:
            raise NotACallError
        return chr(int(digits, 16))
    if char == "N":
        return (yield from _named_char(cursor))
    if char and char in "01234567":
        digits = char
        while len(digits) < 3 and (mark := (yield from cursor.peek())) and mark in "01234567":
            digits += yield from cursor.chars(1)
        return chr(int(digits, 8))
    return _ESCAPES.get(char, "\\" + char)


def _named_char(cursor: Cursor) -> Generator[None, None, str]:
    if (yield from cursor.chars(1)) != "{":
        raise NotACallError
    parts: list[str] = []
    yield from cursor.until(Texts(("}",)), parts.append, MAX_NAME_CHARS)
    try:
        return unicodedata.lookup("".join(parts))
    except KeyError:
        raise NotACallError from None


def _number_or_constant(cursor: Cursor, sink: Sink) -> Generator[None, None, None]:
    parts: list[str] = []
    if not (yield from cursor.before(_SCALAR_STOP, parts.append)):
        raise NotACallError
    text = "".join(parts)
    if text in _CONSTANTS:
        sink(_CONSTANTS[text])
    elif _JSON_NUMBER.fullmatch(text):
        sink(text)
    else:
        sink(_json_of_number(text))


def _json_of_number(text: str) -> str:
    """JSON of a number that Python writes in another way, such as 0x1F, 1_000 or 1."""
    try:
        if not _PYTHON_NUMBER.fullmatch(text):
            raise NotACallError
        value = ast.literal_eval(text)
        if type(value) not in (int, float):
            raise NotACallError
        return json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise NotACallError from None


def _name(cursor: Cursor) -> Generator[None, None, tuple[str, str]]:
    """A name, and the character behind it, which is read too."""
    parts: list[str] = []
    end = yield from cursor.until(_NAME_ENDS, parts.append, MAX_NAME_CHARS)
    name = "".join(parts).strip()
    if not _NAME.fullmatch(name):
        raise NotACallError
    return name, end


def _comma_or(cursor: Cursor, closing: str) -> Generator[None, None, None]:
    """Reads the comma behind a value, and white space; the closing bracket is not read."""
    yield from cursor.spaces()
    mark = yield from cursor.peek()
    if mark == ",":
        yield from cursor.chars(1)
        yield from cursor.spaces()
    elif mark != closing:
        raise NotACallError


def _quoted(text: str) -> str:
    """JSON of a string. Half a character, the symbol of a marker token, stays as it is."""
    return json.dumps(text, ensure_ascii=False)
