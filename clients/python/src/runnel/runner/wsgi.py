"""The endpoint as a WSGI application, for Flask and others, and a small server of its own."""

from __future__ import annotations

import http
import socketserver
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._loop import LoopThread
from . import _unverified
from .endpoint import Rejection, Request, Response

if TYPE_CHECKING:
    from .endpoint import Endpoint

_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature", "runnel-attempt")
_CHUNK = 65_536


class WsgiApp:
    """Runs execute on one event loop in a thread; each request occupies a thread of the server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self._loop = endpoint, LoopThread()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            response = self._loop.call(self._endpoint.handle(self._request(environ)))
        except Rejection as rejection:
            response = rejection.response()
        headers = dict(response.headers)
        if response.frames is None:
            headers["content-length"] = str(len(response.body))
        start_response(f"{response.status} {http.HTTPStatus(response.status).phrase}", list(headers.items()))
        return [response.body] if response.frames is None else _Frames(self._loop, response)

    def _request(self, environ: dict[str, Any]) -> Request:
        limit = self._endpoint.max_body_bytes
        stated = environ.get("CONTENT_LENGTH") or "0"
        length = int(stated) if stated.isdecimal() else 0
        stream = environ["wsgi.input"]
        if length > limit:
            # A client that is still sending does not read the answer.
            for _ in range(0, min(length, 8 * limit), _CHUNK):
                stream.read(min(_CHUNK, length))
            raise Rejection(413, "payload_too_large", f"the body is larger than {limit} bytes")
        body = _read(stream, length)
        headers = {name: environ.get(f"HTTP_{name.upper().replace('-', '_')}", "") for name in _HEADERS}
        return Request(environ["REQUEST_METHOD"], environ.get("PATH_INFO") or "/", headers, body)


def _read(stream: Any, length: int) -> bytes:
    bodies = _unverified.PROCESS
    number = bodies.begin()
    try:
        size = 0
        while size < length and (piece := stream.read(min(_CHUNK, length - size))):
            size = bodies.add(number, piece)
        return bodies.end(number)
    finally:
        bodies.end(number)


class _Frames(Iterator[bytes]):
    """The body of a run. The server calls `close` when the gateway stops reading."""

    def __init__(self, loop: LoopThread, response: Response) -> None:
        assert response.frames is not None  # noqa: S101 - for the type checker
        self._loop, self._frames = loop, response.frames
        self._each = loop.iterate(self._frames)

    def __next__(self) -> bytes:
        return next(self._each)

    def close(self) -> None:
        # A generator that never began does not close what it iterates over.
        self._loop.call(self._frames.aclose())


class _Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """One line for each request would hide what the runner prints."""

    def address_string(self) -> str:
        # Without a name look-up.
        return str(self.client_address[0])


def serve(endpoint: Endpoint, host: str, port: int) -> None:
    """Serves until Ctrl-C. The first line of the output has the address; port 0 selects a free port."""
    with wsgiref.simple_server.make_server(host, port, endpoint.wsgi, _Server, _Handler) as server:
        print(f"listening http://{host}:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
