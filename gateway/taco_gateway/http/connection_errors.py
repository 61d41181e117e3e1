"""Errors of connections whose request never reached a route, in OpenAI's format."""

from collections.abc import Mapping

from taco_gateway.api_errors import ApiError, error_bytes
from taco_gateway.http.request_id import REQUEST_ID_HEADER, new_request_id


def connection_error(status: int, message: str) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of a rejection."""
    error = ApiError(status, message)
    headers = {
        "content-type": "application/json",
        REQUEST_ID_HEADER.decode(): new_request_id().decode(),
    }
    return headers | error.headers, error_bytes(error)
