"""HTTP calls of the host API, bounded in size and time."""

import asyncio
import contextlib
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
        """One call that ends within `timeout` seconds, without the wait for a resume. Raises the SDK's errors."""
        response, body = await self._exchange(run, action, method, path, timeout, LIMITS.answer_bytes, request)
        return Answer(body, _json(response, body, action))

    async def read(self, run: Run, path: str, max_bytes: int) -> tuple[bytes, str]:
        """The content of a file and its type. Raises the SDK's errors, also for more than `max_bytes` bytes."""
        response, body = await self._exchange(run, "read_artifact", "GET", path, 60.0, max_bytes, {})
        return body, response.content_type

    async def stream(
        self, run: Run, action: str, method: str, path: str, silence: float, **request: typing.Any
    ) -> AsyncIterator[Payload]:
        """The events of a stream. `silence` seconds without a byte end it with the SDK's timeout."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence)
        repeats = _Repeats(run, is_harmless=False)
        while True:
            try:
                async with self._response(run, action, method, path, limit, request) as response:
                    async for data in _events(response, action):
                        if data == b"[DONE]":
                            return
                        item = _item(data, action)
                        if "error" in item:
                            raise errors.refused(action, response.status, data)
                        yield item
                    return
            except (ActionCallError, ActionCallTimeoutError, ConnectionClosedError) as error:
                failure = error
            if not await repeats.is_due(failure):
                raise failure

    async def _exchange(
        self,
        run: Run,
        action: str,
        method: str,
        path: str,
        timeout: float | None,
        max_bytes: int,
        request: Payload,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_SECONDS)
        is_keyed = "idempotency-key" in request.get("headers", {})
        repeats = _Repeats(run, is_harmless=is_keyed or method == "GET")
        while True:
            try:
                async with self._response(run, action, method, path, limit, request) as response:
                    return response, await _read(response, action, max_bytes)
            except (ActionCallError, ActionCallTimeoutError, ConnectionClosedError) as error:
                failure = error
            if not await repeats.is_due(failure):
                raise failure

    @contextlib.asynccontextmanager
    async def _response(
        self, run: Run, action: str, method: str, path: str, limit: aiohttp.ClientTimeout, request: Payload
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._request(run, method, path, limit, dict(request)) as response:
                if not response.ok:
                    body = await _read(response, action)
                    raise errors.refused(action, response.status, body, response.headers.get("retry-after"))
                yield response
        except TimeoutError as error:
            seconds = limit.sock_read or limit.total
            raise ActionCallTimeoutError(f"{action}: the gateway did not answer within {seconds} s") from error
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


class _Repeats:
    """Repeats of one call: of one without effect after the resume of its run, of a broken harmless one, too."""

    def __init__(self, run: Run, *, is_harmless: bool) -> None:
        self._run, self._moved, self._is_harmless = run, run.moved, is_harmless
        self._until: float | None = None

    async def is_due(self, error: Exception) -> bool:
        """Waits for the resume. False if the call is not to be repeated, or no gateway resumed the run in time."""
        is_refused = isinstance(error, ActionCallError) and errors.code_of(error) == "run_moved"
        is_unsent = isinstance(error.__cause__, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        is_broken = isinstance(error, ConnectionClosedError)
        if not (is_refused or is_unsent or (is_broken and self._is_harmless)):
            return False
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + min(LIMITS.resume_seconds, self._run.seconds_left())
        pause = max(self._until - now, 0.0)
        if not is_refused:
            # The gateway may be reachable again without a resume.
            pause = min(pause, LIMITS.repeat_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._moved.wait()
        is_moved, self._moved = self._moved.is_set(), self._run.moved
        return is_moved or (pause > 0 and not is_refused)


def _item(data: bytes, action: str) -> Payload:
    try:
        return mapping(json.loads(data))
    except ValueError as error:
        raise errors.action_error(action, "runtime_error", f"{action}: a line is no JSON") from error


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
