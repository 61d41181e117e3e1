"""Converts dataclasses to protobuf messages whose fields have the same names, and back.

A codec is derived from the annotations of the dataclass, once, at import. A new field therefore
needs an entry in the .proto file and one in the dataclass, and no code that copies it. A field of
the dataclass that the message lacks is an error at import unless the codec is told how to fill it.

| annotation | field of the message |
|---|---|
| `IntArray`, `LongArray` | repeated integers, or bytes: packed little-endian |
| `tuple[X, ...]`, `Mapping` | repeated values, map |
| a type of `nested` | a message; with `\\| None` it may be absent |
| `X \\| None` | an optional scalar |
| anything else | a scalar |
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

V = TypeVar("V")
M = TypeVar("M", bound=Message)

# From a value of the dataclass to the field's value, and from the whole message to a value.
Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


class Converter(NamedTuple):
    """Hand-written converters of a field's type, where names alone do not say them."""

    value_type: type
    to_pb: Callable[[Any], Any]
    from_pb: Callable[[Any], Any]


class MessageCodec(Generic[V, M]):
    """Both directions between one dataclass and one message type.

    Args:
        value_type: the dataclass.
        message_type: the generated class.
        nested: codecs and converters of the types of fields that are messages themselves.
        encode: for fields that need more than a copy: from the field's value to the message's.
        decode: for fields that need more than a copy: from the message to the field's value.

    Raises:
        TypeError: the message lacks a field of the dataclass.
    """

    def __init__(
        self,
        value_type: type[V],
        message_type: type[M],
        *,
        nested: "tuple[MessageCodec[Any, Any] | Converter, ...]" = (),
        encode: Mapping[str, Encode] | None = None,
        decode: Mapping[str, Decode] | None = None,
    ) -> None:
        self.value_type = value_type
        self._message_type = message_type
        self._encode: list[tuple[str, Encode | None]] = []
        self._decode: list[tuple[str, Decode]] = []
        codecs = {codec.value_type: codec for codec in nested}
        own_encode, own_decode = encode or {}, decode or {}
        hints = get_type_hints(value_type)
        for field in fields(value_type):  # type: ignore[arg-type]
            name = field.name
            descriptor = message_type.DESCRIPTOR.fields_by_name.get(name)
            if name in own_decode and descriptor is None:
                self._decode.append((name, own_decode[name]))  # it travels under other names
                continue
            if descriptor is None:
                raise TypeError(f"{message_type.__name__} has no field {name!r}")
            empty = field.default_factory() if field.default_factory is not MISSING else None
            to_pb, from_pb = _field_codec(hints[name], descriptor, codecs, empty)
            self._encode.append((name, own_encode.get(name, to_pb)))
            self._decode.append((name, own_decode.get(name, from_pb)))

    def to_pb(self, value: V, **extra: Any) -> M:
        """The message; `extra` are fields that the dataclass does not have."""
        columns = {
            name: getattr(value, name) if encode is None else encode(getattr(value, name))
            for name, encode in self._encode
        }
        return self._message_type(**columns, **extra)

    def from_pb(self, message: M, **extra: Any) -> V:
        """The dataclass; `extra` are fields that the message cannot give.

        Raises:
            ValueError, OverflowError: a number or a packed column is out of range.
        """
        values = {name: decode(message) for name, decode in self._decode if name not in extra}
        return self.value_type(**values, **extra)


def _field_codec(
    hint: Any,
    field: Any,
    codecs: Mapping[type, MessageCodec[Any, Any] | Converter],
    empty: Any,
) -> tuple[Encode | None, Decode]:
    name = field.name
    hint, is_optional = _without_none(hint)
    origin = get_origin(hint)
    if origin is np.ndarray:
        return _column_codec(name, get_args(get_args(hint)[1])[0], field, empty)
    if hint in codecs:
        codec = codecs[hint]
        if not is_optional:
            return codec.to_pb, lambda message: codec.from_pb(getattr(message, name))
        return (
            lambda value: None if value is None else codec.to_pb(value),
            lambda message: (
                codec.from_pb(getattr(message, name)) if message.HasField(name) else None
            ),
        )
    if origin is tuple:
        (item, _) = get_args(hint)
        if item in codecs:
            codec = codecs[item]
            return (
                lambda values: [codec.to_pb(value) for value in values],
                lambda message: tuple(codec.from_pb(part) for part in getattr(message, name)),
            )
        return None, lambda message: tuple(getattr(message, name))
    if origin is not None and issubclass(origin, Mapping):
        return None, lambda message: dict(getattr(message, name))
    if is_optional:
        return None, lambda message: getattr(message, name) if message.HasField(name) else None
    return None, lambda message: getattr(message, name)


def _column_codec(name: str, dtype: Any, field: Any, empty: Any) -> tuple[Encode, Decode]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        packed = np.dtype(dtype).newbyteorder("<")
        return (
            lambda column: column.astype(packed, copy=False).tobytes(),
            lambda message: np.frombuffer(getattr(message, name), packed),
        )
    absent = np.zeros(0, dtype) if empty is None else empty

    def decode(message: Any) -> Any:
        values = getattr(message, name)
        return np.array(values, dtype) if values else absent

    return np.ndarray.tolist, decode


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) is UnionType and NoneType in get_args(hint):
        (rest,) = (part for part in get_args(hint) if part is not NoneType)
        return rest, True
    return hint, False
