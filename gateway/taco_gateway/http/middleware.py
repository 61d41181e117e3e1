"""ASGI middleware around every route: request id, request log, and unexpected errors."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taco_gateway.api_errors import error_response
from taco_gateway.http.request_id import REQUEST_ID_HEADER, request_id_of
from taco_gateway.metrics import GatewayMetrics
from taco_gateway.request_log import begin_request_log


class RequestContextMiddleware:
    """Gives every request an id, and turns uncaught exceptions into a 500.

    The id is the client's `x-request-id` if it is printable and short, else a new one. It is in
    `scope["state"]["request_id"]`.
    """

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Routes match the path as it was sent, because the rules of a proxy saw it like that.
        if raw_path := scope.get("raw_path"):
            scope["path"] = raw_path.decode("latin-1")
        request_id = request_id_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        log = begin_request_log(scope, request_id.decode())
        is_head = scope["method"] == "HEAD"
        if is_head:  # answered as GET; the server sends no body
            scope = {**scope, "method": "GET"}
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER, request_id)]
                self._metrics.observe_response(message["status"])
                log.status = message["status"]
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            response = error_response(error)
            if started:
                log.status = response.status_code
                raise  # too late to answer; the server closes the connection
            await response(scope, receive, send_with_id)
        finally:
            key = scope["state"].get("api_key")
            log.key = "" if key is None else key.tenant.name
            log.write()
