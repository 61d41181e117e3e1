"""A streaming client of OpenAI-compatible servers; needs only the standard library."""

import http.client
import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from taco_llm.args.server_url import parse_server_url

CONNECT_SECONDS = 10.0
_LIST_SECONDS = 30.0


class Piece(NamedTuple):
    """The text that one event adds to a streamed answer.

    Attributes:
        finish_reason: set in the last piece.
    """

    text: str
    finish_reason: str | None


Pieces = Generator[Piece, None, None]


class RequestFailedError(Exception):
    """The server cannot be reached, or rejects the request. The message is one line."""


class StreamingClient:
    """A client of one OpenAI-compatible server.

    Args:
        url: the server's URL, with or without the path /v1.

    Raises:
        ConfigurationError: `url` is not an http or https URL.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = parse_server_url(url)
        assert parts.hostname is not None
        self._is_https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") or "/v1"
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._path}"
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def first_model(self) -> str:
        """The name of the first model that the server lists.

        Raises:
            RequestFailedError: the server cannot be reached, rejects the request, or lists no
                model.
        """
        connection = self._connect()
        try:
            response = self._send(connection, "GET", "/models", None, _LIST_SECONDS)
            models = json.loads(response.read())["data"]
            return str(models[0]["id"])
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise RequestFailedError(f"{self.url}/models lists no model") from None
        finally:
            connection.close()

    def stream(
        self, path: str, body: Mapping[str, Any], text_of: Callable[[Mapping[str, Any]], str | None]
    ) -> Pieces:
        """Sends a request and yields the text that each event adds to the first choice.

        Closing the iterator closes the connection, which cancels the request on the server.

        Args:
            text_of: returns the text of a choice.

        Raises:
            RequestFailedError: the server cannot be reached, rejects the request, closes the
                connection early, or answers in another format.
        """
        connection = self._connect()
        try:
            message = json.dumps({**body, "stream": True}).encode()
            # No timeout: the request may wait long in the queue, and the user can interrupt.
            for line in self._send(connection, "POST", path, message, None):
                name, _, value = line.strip().partition(b":")
                if name != b"data":
                    continue
                if value.strip() == b"[DONE]":
                    return
                event = json.loads(value)
                if "error" in event:
                    raise RequestFailedError(_message(event))
                if event.get("choices"):
                    choice = event["choices"][0]
                    # JSON may hold half a surrogate pair, which cannot be printed.
                    text = (text_of(choice) or "").encode(errors="replace").decode()
                    yield Piece(text, choice.get("finish_reason"))
            raise RequestFailedError(f"{self.url} closed the connection before the answer ended")
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise RequestFailedError(
                f"{self.url} does not answer in the format of OpenAI's API"
            ) from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
        except OSError as error:
            raise RequestFailedError(
                f"cannot reach {self.url}: {error.strerror or error}. Start a server with "
                "`taco_llm serve`, or name one with --url"
            ) from None
        return connection

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        seconds: float | None,
    ) -> http.client.HTTPResponse:
        """Raises RequestFailedError for an answer with an error status."""
        connection.sock.settimeout(seconds)
        connection.request(method, self._path + path, body, self._headers)
        response = connection.getresponse()
        if response.status == http.client.OK:
            return response
        try:
            reason = _message(json.loads(response.read()))
        except (ValueError, RecursionError):
            reason = response.reason
        if response.status == http.client.UNAUTHORIZED:
            reason = f"{reason.rstrip('.')}; give a key with --api-key or TACO_API_KEY"
        raise RequestFailedError(f"{self.url}{path} answered {response.status}: {reason}")

    def _broken(self, error: Exception) -> RequestFailedError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return RequestFailedError(f"the connection to {self.url} failed: {reason}")


def _message(answer: Any) -> str:
    """The text of an error on one line, in OpenAI's format or any other."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    text = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(text).split())
