"""Readers of single tool calls, one for each form that a format may have."""

import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from taco_gateway.text.response.cursor import MAX_NAME_CHARS, Cursor, NotACallError, Texts
from taco_gateway.text.response.formats import JsonCall, NamedCall, TaggedCall
from taco_gateway.text.response.typed_values import has_property, typed_value, value_types

Encode = Callable[[str], str]

_HALVES = re.compile("[\ud800-\udfff]")


class CallSink(Protocol):
    """Gets the parts of one call in their order: its name, then fragments of its arguments."""

    def open(self, name: str, own_id: str = "") -> None:
        """Begins the call.

        Args:
            own_id: the id of the call that the model has written; empty: none.

        Raises:
            NotACallError: there is no such function.
        """

    def arguments(self, fragment: str) -> None: ...


class JsonCallReader:
    """Reads `{"name": …, "arguments": …}`; the bytes of the arguments pass unchanged."""

    def __init__(self, form: JsonCall) -> None:
        self._form = form

    def read(self, cursor: Cursor, sink: CallSink) -> Generator[None, None, None]:
        if not (yield from cursor.take(Texts(("{",)))):
            raise NotACallError
        is_open = has_arguments = False
        early: list[str] = []  # arguments that precede the name
        while True:
            yield from cursor.spaces()
            mark = yield from cursor.peek()
            if mark == "}":
                yield from cursor.take(Texts(("}",)))
                break
            if mark == ",":
                yield from cursor.take(Texts((",",)))
                continue
            if mark != '"':
                raise NotACallError
            key = yield from _json_string(cursor)
            yield from cursor.spaces()
            if not (yield from cursor.take(Texts((":",)))):
                raise NotACallError
            yield from cursor.spaces()
            if key == self._form.name_key and not is_open:
                sink.open((yield from _json_string(cursor)))
                is_open = True
                if early:
                    sink.arguments("".join(early))
            elif key in self._form.argument_keys and not has_arguments:
                has_arguments = True
                yield from _arguments(cursor, sink.arguments if is_open else early.append)
            else:
                yield from cursor.value(_drop)
        if not is_open:
            raise NotACallError
        if not has_arguments:
            sink.arguments("{}")


class NamedCallReader:
    """Reads a name and a JSON object; the bytes of the object pass unchanged."""

    def __init__(self, form: NamedCall, encode: Encode) -> None:
        self._form = form
        self._before = Texts((encode(form.before),) if form.before else ())
        self._stops = tuple(map(encode, form.name_ends))
        self._ends = Texts(self._stops)
        self._call_id = encode("[CALL_ID]")
        self._after = Texts(tuple(encode(text).lstrip() for text in form.after))

    def read(self, cursor: Cursor, sink: CallSink) -> Generator[None, None, None]:
        if self._before.texts and not (yield from cursor.take(self._before)):
            raise NotACallError
        name: list[str] = []
        end = yield from cursor.until(self._ends, name.append, MAX_NAME_CHARS)
        called = "".join(name).strip()
        if not end or not called:
            raise NotACallError
        while end == self._call_id:
            end = yield from cursor.until(self._ends, _drop, MAX_NAME_CHARS)
        sink.open(*self._name_and_id(called))
        opened = end == "{"
        if opened:
            # The brace is read already: the object continues behind it.
            sink.arguments("{")
            yield from cursor.rest_of_object(sink.arguments)
        else:
            yield from cursor.spaces()
            yield from _arguments(cursor, sink.arguments)
        if self._after.texts:
            yield from cursor.spaces()
            yield from cursor.take(self._after)

    def _name_and_id(self, called: str) -> tuple[str, str]:
        """The function's name, and the id in which it is; an empty id: the model wrote none.

        Raises:
            NotACallError: there is no name.
        """
        name, own_id = called, ""
        if self._form.id_closes:
            head, closes, number = called.rpartition(self._form.id_closes)
            if closes and number.isascii() and number.isdigit():
                name, own_id = head, called
        name = name.removeprefix(self._form.id_opens)
        if not name:
            raise NotACallError
        return name, own_id


class TaggedCallReader:
    """Reads a call of nested tags, and writes its arguments as JSON.

    Models leave out the tag that closes a value. Then the value ends at a line that begins with the
    next key or with the end of the call, if what follows fits.

    Args:
        schemas: the JSON schema of the parameters of each tool, by name.
        section_closes: markers that may follow the call.
        is_bare: no marker precedes the call: what follows its name must be a part of a call.
    """

    def __init__(
        self,
        form: TaggedCall,
        encode: Encode,
        schemas: Mapping[str, Any],
        section_closes: tuple[str, ...] = (),
        *,
        is_bare: bool = False,
    ) -> None:
        self._form = form
        self._schemas = schemas
        self._is_bare = is_bare
        self._name_opens = Texts((encode(form.name_opens),) if form.name_opens else ())
        self._call_closes = encode(form.call_closes)
        self._key_opens = encode(form.key_opens)
        self._name_closes = Texts((encode(form.name_closes),) if form.name_closes else ())
        if not form.name_closes.strip():
            parts = (*self._name_closes.texts, self._key_opens, self._call_closes)
            self._name_closes = Texts(parts)
        self._key_or_end = Texts((self._key_opens, self._call_closes))
        self._key_closes = Texts((encode(form.key_closes),))
        self._key_line_ends = Texts((*self._key_closes.texts, "\n"))
        self._value_opens = Texts((encode(form.value_opens).lstrip(),) if form.value_opens else ())
        self._value_closes = encode(form.value_closes)
        self._value_ends = Texts(
            (self._value_closes, f"\n{self._key_opens}", f"\n{self._call_closes}")
        )
        self._after_call = Texts((*map(encode, section_closes), *self._name_opens.texts))

    def read(self, cursor: Cursor, sink: CallSink) -> Generator[None, None, None]:
        if self._name_opens.texts and not (yield from cursor.take(self._name_opens)):
            raise NotACallError
        name, end = yield from self._name(cursor, self._name_closes)
        if not name:
            raise NotACallError
        if end in self._key_or_end.texts:
            cursor.unread(end)
        if self._is_bare:
            yield from cursor.spaces()
            part = yield from cursor.take(self._key_or_end)
            if not part:
                raise NotACallError
            cursor.unread(part)
        sink.open(name)
        opening = "{"
        while True:
            tag = yield from cursor.until(self._key_or_end, _drop)
            if not tag:
                raise NotACallError
            if tag == self._call_closes:
                break
            key, _ = yield from self._name(cursor, self._key_closes)
            if self._value_opens.texts:
                yield from cursor.spaces()
                if not (yield from cursor.take(self._value_opens)):
                    raise NotACallError
            text = yield from self._text_of_value(cursor, name)
            value = self._value(text, value_types(self._schemas.get(name), key))
            written = _with_escapes(json.dumps(value, ensure_ascii=False), text)
            sink.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: {written}")
            opening = ", "
        sink.arguments("{}" if opening == "{" else "}")

    def _text_of_value(self, cursor: Cursor, name: str) -> Generator[None, None, str]:
        """Reads a value up to its closing tag, or to where it ends without one."""
        parts: list[str] = []
        while end := (yield from cursor.until(self._value_ends, parts.append)):
            if end == self._value_closes:
                return "".join(parts)
            tag = end[1:]
            if tag == self._call_closes:
                ends_here = yield from self._is_end_of_call(cursor)
            else:
                ends_here = yield from self._is_key_of(cursor, name)
            if ends_here:
                cursor.unread(tag)
                return "".join(parts)
            parts.append(end)
        raise NotACallError

    def _is_end_of_call(self, cursor: Cursor) -> Generator[None, None, bool]:
        """Whether a section ends next, another call begins, or the text ends; reads nothing."""
        spaces = yield from cursor.spaces()
        found = yield from cursor.take(self._after_call)
        is_end = not (yield from cursor.peek())
        cursor.unread(spaces + found)
        return bool(found) or is_end

    def _is_key_of(self, cursor: Cursor, name: str) -> Generator[None, None, bool]:
        """Whether the rest of a tag names a parameter of the tool; reads nothing."""
        parts: list[str] = []
        closed = ""
        with suppress(NotACallError):  # it is too long
            closed = yield from cursor.until(self._key_line_ends, parts.append, MAX_NAME_CHARS)
        key = "".join(parts)
        cursor.unread(key + closed)
        return closed not in ("", "\n") and has_property(self._schemas.get(name), key.strip())

    def _value(self, text: str, types: tuple[str, ...]) -> Any:
        if self._form.trims_values:
            text = text.strip()
        elif not self._form.keeps_spaces:
            text = text.removeprefix("\n").removesuffix("\n")
        if not types and self._form.guesses_types:
            types = ("object", "array", "number", "boolean", "null")
        return typed_value(text, types)

    def _name(self, cursor: Cursor, ends: Texts) -> Generator[None, None, tuple[str, str]]:
        """A name and the text that ends it, which is read too."""
        parts: list[str] = []
        if not (end := (yield from cursor.until(ends, parts.append, MAX_NAME_CHARS))):
            raise NotACallError
        return "".join(parts).strip(), end


def _arguments(cursor: Cursor, sink: Callable[[str], None]) -> Generator[None, None, None]:
    """Reads the arguments; an object inside a string is unpacked."""
    if (yield from cursor.peek()) != '"':
        yield from cursor.value(sink)
        return
    parts: list[str] = []
    yield from cursor.value(parts.append)
    sink(_unpacked("".join(parts)))


def _unpacked(text: str) -> str:
    try:
        inner = json.loads(text, strict=False)
        return _with_escapes(inner, text) if isinstance(json.loads(inner), dict) else text
    except (ValueError, RecursionError):
        return text


def _with_escapes(written: str, source: str) -> str:
    """JSON text whose halves of characters are escaped, as they were in the model's text.

    Halves that the source has unescaped are symbols of marker tokens.
    """
    if written.isascii():
        return written
    return _HALVES.sub(
        lambda half: half[0] if half[0] in source else f"\\u{ord(half[0]):04x}", written
    )


def _json_string(cursor: Cursor) -> Generator[None, None, str]:
    parts: list[str] = []
    num_chars = 0

    def add(text: str) -> None:
        nonlocal num_chars
        num_chars += len(text)
        if num_chars > MAX_NAME_CHARS:
            raise NotACallError
        parts.append(text)

    if (yield from cursor.peek()) != '"':
        raise NotACallError
    yield from cursor.value(add)
    try:
        text = json.loads("".join(parts), strict=False)
        text.encode()  # an escape may give half a character
    except ValueError:
        raise NotACallError from None
    assert isinstance(text, str)
    return text


def _drop(text: str) -> None:
    """Ignores text."""
