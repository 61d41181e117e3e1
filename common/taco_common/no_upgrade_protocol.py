"""Ignores the `Upgrade` header of requests (RFC 9110, section 7.8), for every listener on uvicorn.

httptools ends HTTP behind the header of such a request, and uvicorn drops what has arrived of the
body: the rest of the body would be read as the next request. So the header is parsed again, without
`Upgrade`. CONNECT, which ends HTTP too, is malformed here: it names no path.
"""

from typing import Any, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class NoUpgradeProtocol(HttpToolsProtocol):
    """One connection, on which HTTP/1.1 is the only protocol."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = cast(HttpRequestParser, _RequestParser(self))


class _RequestParser:
    """httptools' parser, which reads every request to its end.

    References between it and its protocol form cycles through the protocol's attribute `parser`
    only, which uvicorn clears when the connection is lost.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._callbacks = _Callbacks(protocol)
        self._parser = self._new_parser()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        """Raises:
        httptools.HttpParserError: a request is malformed, or a callback has raised.
        """
        rest: bytes | memoryview = data
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
            header = self._header_without_upgrade()
            self._callbacks.hides_request = False
            self._parser = self._new_parser()
            self._parser.feed_data(header)

    def _new_parser(self) -> HttpRequestParser:
        parser = HttpRequestParser(self._callbacks)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return parser

    def _header_without_upgrade(self) -> bytes:
        method, version = self._parser.get_method(), self._parser.get_http_version()
        lines = [b"%b %b HTTP/%b" % (method, self._protocol.url, version.encode())]
        headers = self._protocol.headers
        lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])


class _Callbacks:
    """Passes httptools' callbacks to a protocol, except the ends of a header that has `Upgrade`.

    Attributes:
        hides_request: the protocol must not see the end of this request, which is parsed again.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self.hides_request = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)

    def on_headers_complete(self) -> None:
        parser = self._protocol.parser
        if not parser.should_upgrade():
            self._protocol.on_headers_complete()
        elif parser.get_method() == b"CONNECT":
            raise ValueError("CONNECT is not supported")  # httptools reports a malformed request
        else:
            self.hides_request = True

    def on_message_complete(self) -> None:
        if not self.hides_request:
            self._protocol.on_message_complete()
