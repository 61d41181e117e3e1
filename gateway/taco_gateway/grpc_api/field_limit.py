"""Limits the number of fields of a gRPC request before it is parsed.

A protobuf message of 2 MB can hold a million messages, whose parsing would block the event loop for
0.2 s.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

MAX_FIELDS = 8192  # in a request and all its messages

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class FieldLimitInterceptor(grpc.aio.ServerInterceptor):
    """Rejects requests with more than `MAX_FIELDS` fields before they are parsed.

    It also rejects bytes that cannot be parsed: gRPC itself would log a traceback for each.

    Args:
        methods: message type by full method name (`/package.Service/Method`), each of one request.
    """

    def __init__(self, methods: dict[str, type[Message]]) -> None:
        self._methods = methods

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        message = self._methods.get(handler_call_details.method)
        if message is None:
            return handler
        options = {
            "request_deserializer": partial(_parse, message),
            "response_serializer": handler.response_serializer,
        }
        if handler.response_streaming:
            answers = _checked_stream(handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(answers, **options)
        return grpc.unary_unary_rpc_method_handler(_checked(handler.unary_unary), **options)


def _parse(message: type[Message], data: bytes) -> Message | str:
    """The request, or why it is rejected."""
    if has_more_fields(data, message, MAX_FIELDS):
        return f"The request has more than {MAX_FIELDS} fields."
    try:
        return message.FromString(data)
    except DecodeError:
        return f"The request is not a valid {message.DESCRIPTOR.name} message."


def _checked(answer: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """`answer`, for what `_parse` returns."""

    async def checked(request: Any, context: Any) -> Any:
        if isinstance(request, str):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request)
        return await answer(request, context)

    return checked


def _checked_stream(
    answer: Callable[[Any, Any], AsyncIterator[Any]],
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    """`answer`, for what `_parse` returns."""

    async def checked(request: Any, context: Any) -> AsyncIterator[Any]:
        if isinstance(request, str):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request)
        async for reply in answer(request, context):
            yield reply

    return checked


def has_more_fields(data: bytes, message: type[Message], limit: int) -> bool:
    """Whether a serialized message sets more than `limit` fields; visits at most `limit` + 1.

    Packed numbers are one field. Bytes that are not protobuf are left to the parser.
    """
    num_fields = 0
    pending: list[tuple[int, int, Any]] = [(0, len(data), message.DESCRIPTOR)]
    while pending:
        position, end, descriptor = pending.pop()
        while position < end:
            num_fields += 1
            if num_fields > limit:
                return True
            tag, position = _varint(data, position)
            kind, field = tag & 7, descriptor.fields_by_number.get(tag >> 3)
            if kind == _VARINT:
                _, position = _varint(data, position)
            elif kind == _FIXED64:
                position += 8
            elif kind == _FIXED32:
                position += 4
            elif kind == _BYTES:
                size, position = _varint(data, position)
                if field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
                    pending.append((position, min(position + size, end), field.message_type))
                position += size
            else:
                return True  # a group, which these messages do not have
    return False


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number and the position after it; the end of the data if it is not complete."""
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    return 0, len(data)
