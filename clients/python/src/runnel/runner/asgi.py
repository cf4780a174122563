"""The endpoint as an ASGI application, for Starlette, FastAPI, uvicorn and others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from . import _unverified
from .endpoint import Rejection, Request, Response

if TYPE_CHECKING:
    from .endpoint import Endpoint

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_BODY_SECONDS, _CLOSE_SECONDS = 30.0, 1.0


async def serve_asgi(endpoint: Endpoint, scope: Any, receive: Receive, send: Send) -> None:
    """Serves one request; also the lifespan protocol, without work."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    if scope["type"] != "http":
        raise RuntimeError("a runner endpoint serves HTTP only")
    try:
        body = await asyncio.wait_for(_body(receive, endpoint.max_body_bytes), _BODY_SECONDS)
        headers = dict[str, str]()
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            # A doubled header becomes a list, as in WSGI: it matches no signature.
            headers[key] = f"{headers[key]},{text}" if key in headers else text
        response = await endpoint.handle(Request(scope["method"], _path(scope), headers, body))
    except Rejection as rejection:
        response = rejection.response()
    except asyncio.TimeoutError:
        response = Rejection(408, "invalid_argument", "the body did not arrive in time").response()
    except _Gone:
        return
    await _respond(response, receive, send)


def _path(scope: Any) -> str:
    """Path relative to the mount of the endpoint."""
    path, root = str(scope["path"]), str(scope.get("root_path") or "")
    # Older servers send the path without the mount.
    return path[len(root) :] if root and path.startswith(root) else path


async def _body(receive: Receive, limit: int) -> bytes:
    bodies = _unverified.PROCESS
    number = bodies.begin()
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            if bodies.add(number, message.get("body", b"")) > limit:
                raise Rejection(413, "payload_too_large", f"the body is larger than {limit} bytes")
            if not message.get("more_body"):
                return bodies.end(number)
    finally:
        bodies.end(number)


async def _respond(response: Response, receive: Receive, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in response.headers.items()]
    start = {"type": "http.response.start", "status": response.status, "headers": headers}
    if response.frames is None:
        await send(start)
        await send({"type": "http.response.body", "body": response.body})
        return
    # Nothing is sent while a run is silent, so a closed connection shows in `receive` only.
    sending = asyncio.ensure_future(_send_frames(response, start, send))
    leaving = asyncio.ensure_future(_disconnected(receive))
    replaced = asyncio.ensure_future(response.frames.replaced.wait())
    try:
        await asyncio.wait((sending, leaving, replaced), return_when=asyncio.FIRST_COMPLETED)
        if replaced.done():
            # The frames end, unless the peer of this connection takes no more bytes.
            await asyncio.wait((sending,), timeout=_CLOSE_SECONDS)
    finally:
        for task in (sending, leaving, replaced):
            task.cancel()
        await asyncio.gather(sending, leaving, replaced, return_exceptions=True)
        # Detaches the run, also if no frame was sent.
        await response.frames.aclose()


async def _send_frames(response: Response, start: Message, send: Send) -> None:
    assert response.frames is not None  # noqa: S101 - for the type checker
    # A server raises OSError when the connection is closed.
    with contextlib.suppress(OSError):
        await send(start)
        async for frame in response.frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class _Gone(Exception):
    """The connection was closed before the body was complete."""
