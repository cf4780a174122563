"""HTTP calls of the host API, bounded in size and time."""

import asyncio
import json
import typing
from collections.abc import AsyncIterator

import aiohttp
from langbot_plugin.entities.io.errors import (
    ActionCallError,
    ActionCallTimeoutError,
    ConnectionClosedError,
)
from yarl import URL

from . import errors
from .limits import LIMITS
from .payload import Payload, mapping
from .routes import Answer
from .run import Run

_CONNECT_SECONDS = 5.0
_CONNECTIONS = 512


class GatewayClient:
    """One session for all runs. Follows no redirect and uses no proxy, so a token reaches only its gateway."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()

    async def call(
        self, run: Run, action: str, method: str, path: str, timeout: float | None, **request: typing.Any
    ) -> Answer:
        """One call that ends within `timeout` seconds. Raises the SDK's errors."""
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._request(run, method, path, limit, request) as response:
                body = await _read(response, action)
                if not response.ok:
                    raise errors.refused(action, response.status, body, response.headers.get("retry-after"))
                return Answer(body, _json(response, body, action))
        except TimeoutError as error:
            raise ActionCallTimeoutError(f"{action} did not end within {timeout} s") from error
        except aiohttp.ClientError as error:
            raise ConnectionClosedError(f"{action}: the gateway could not be reached: {error}") from error

    async def stream(
        self, run: Run, action: str, method: str, path: str, silence: float, **request: typing.Any
    ) -> AsyncIterator[Payload]:
        """The events of a stream. `silence` seconds without a byte end it with the SDK's timeout."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence)
        try:
            async with self._request(run, method, path, limit, request) as response:
                if not response.ok:
                    body = await _read(response, action)
                    raise errors.refused(action, response.status, body, response.headers.get("retry-after"))
                async for data in _events(response, action):
                    if data == b"[DONE]":
                        return
                    item = json.loads(data)
                    if isinstance(item, dict) and "error" in item:
                        raise errors.refused(action, response.status, data)
                    yield mapping(item)
        except TimeoutError as error:
            raise ActionCallTimeoutError(f"{action}: the gateway was silent for {silence} s") from error
        except ValueError as error:
            raise errors.action_error(action, "runtime_error", f"{action}: a line is no JSON") from error
        except aiohttp.ClientError as error:
            raise ConnectionClosedError(f"{action}: the stream broke off: {error}") from error

    async def read(self, run: Run, path: str, max_bytes: int) -> tuple[bytes, str]:
        """The content of a file and its type. Raises the SDK's errors, also for more than `max_bytes` bytes."""
        limit = aiohttp.ClientTimeout(total=60.0, sock_connect=_CONNECT_SECONDS)
        action = "read_artifact"
        try:
            async with self._request(run, "GET", path, limit, {}) as response:
                body = await _read(response, action, max_bytes)
                if not response.ok:
                    raise errors.refused(action, response.status, body)
                return body, response.content_type
        except TimeoutError as error:
            raise ActionCallTimeoutError(f"{action} did not end within 60 s") from error
        except aiohttp.ClientError as error:
            raise ConnectionClosedError(f"{action}: the gateway could not be reached: {error}") from error

    def _request(self, run: Run, method: str, path: str, limit: aiohttp.ClientTimeout, request: Payload) -> typing.Any:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        headers = {**run.headers(), **request.pop("headers", {})}
        # Keys are percent-encoded already; a second encoding would name another key.
        url = URL(run.base_url + path, encoded=True)
        if params := request.pop("params", None):
            url = url.extend_query(params)
        return self._session.request(method, url, headers=headers, timeout=limit, allow_redirects=False, **request)


def _json(response: aiohttp.ClientResponse, body: bytes, action: str) -> typing.Any:
    if response.content_type != "application/json" or not body:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        text = f"{action}: the answer is no JSON"
        raise errors.action_error(action, "runtime_error", text) from error


async def _read(response: aiohttp.ClientResponse, action: str, max_bytes: int = LIMITS.answer_bytes) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            raise _too_large(action, max_bytes)
    return bytes(body)


async def _events(response: aiohttp.ClientResponse, action: str) -> AsyncIterator[bytes]:
    """The data of each event. The gateway writes it on one line; only LF and CRLF end a line."""
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LIMITS.answer_bytes:
            raise _too_large(action, LIMITS.answer_bytes)
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
        # Yields to the event loop: a gateway that is faster than the plugin must not delay other runs.
        await asyncio.sleep(0)


def _too_large(action: str, max_bytes: int) -> ActionCallError:
    return errors.action_error(action, "payload_too_large", f"{action}: the answer has more than {max_bytes} bytes")
