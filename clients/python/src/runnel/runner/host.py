"""Calls of the host API with the token of a run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import ssl
import time
import urllib.parse
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from .. import sse
from .._body import decoded
from .._http import http_client
from ..client import read_bounded
from ..errors import ApiError
from .context import HostAccess

log = logging.getLogger("runnel.runner")

MAX_RESPONSE_BYTES = 20 * 1024 * 1024
_CALL_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
# A token is renewed in its last minute, and again 5 s after a failure.
_RENEWAL_SECONDS, _RENEWAL_PAUSE = 60.0, 5.0
# A run lasts a day at most.
_LONGEST_RUN = 86_400.0


class HostApi:
    """Host API of one run, as `ctx.host`. `ctx.models`, `ctx.tools` and the others use it.

    Errors are `ApiError`s. Their codes come from the gateway, or are `callback.unreachable` and
    `callback.timeout`. Redirects are refused: the token goes to the gateway only.
    """

    def __init__(
        self,
        access: HostAccess,
        deadline_at: float | None,
        gateway_now: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url, self._token = access["base_url"].rstrip("/"), access["token"]
        self._expires_at = float(access["token_expires_at"])
        self._deadline_at = deadline_at
        # Deadline and expiry are times of the gateway's clock.
        self._offset = 0.0 if gateway_now is None else gateway_now - time.time()
        self._transport = transport
        self._http: httpx.AsyncClient | None = None

    @property
    def token(self) -> str:
        """Run token: an API key for `{base_url}/openai/v1`, `{base_url}/anthropic` and `{base_url}/mcp`."""
        return self._token

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the run."""
        if self._deadline_at is None:
            return _LONGEST_RUN
        return self._deadline_at - self._now()

    async def json(self, method: str, *path: str, long: bool = False, **options: Any) -> Any:
        """JSON of a response; None for an empty one. Each part of `path` is one segment.

        A call takes 30 s at most, a `long` one the rest of the run.
        """
        content = await self.bytes(method, *path, long=long, **options)
        return json.loads(content) if content else None

    async def bytes(
        self, method: str, *path: str, long: bool = False, max_bytes: int = MAX_RESPONSE_BYTES, **options: Any
    ) -> bytes:
        """Body of a response, at most `max_bytes`."""
        async with self._call(method, path, long, options) as response:
            return await read_bounded(response, max_bytes)

    async def events(self, method: str, *path: str, **options: Any) -> AsyncGenerator[Any, None]:
        """JSON of each event of a response that is a stream. An event `{"error": …}` raises `ApiError`."""
        async with self._call(method, path, True, options) as response:
            if response.status_code >= 300:
                await read_bounded(response, MAX_RESPONSE_BYTES)
            async for event in sse.decode(decoded(response)):
                data = json.loads(event.data)
                # The status is sent before the stream fails, so a later error arrives as an event.
                if "error" in data:
                    error = data["error"]
                    message, retryable = str(error.get("message")), bool(error.get("retryable"))
                    raise ApiError(200, str(error.get("code")), message, retryable, error.get("details"))
                yield data

    @contextlib.asynccontextmanager
    async def _call(
        self, method: str, path: tuple[str, ...], long: bool, options: dict[str, Any]
    ) -> AsyncGenerator[httpx.Response, None]:
        seconds = self.seconds_left if long else min(self.seconds_left, _CALL_SECONDS)
        if seconds <= 0:
            raise ApiError(0, "deadline_exceeded", "the time of the run is over")
        headers = {
            "authorization": f"Bearer {self._token}",
            "accept-encoding": "identity",
            **options.pop("headers", {}),
        }
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        client = self._client()
        try:
            async with client.stream(method, self._url(path), headers=headers, timeout=timeout, **options) as response:
                yield response
        # Before its base class `RequestError`.
        except httpx.TimeoutException as error:
            raise ApiError(0, "callback.timeout", "the gateway did not answer in time", True) from error
        except httpx.RequestError as error:
            text = f"the gateway cannot be reached: {type(error).__name__}"
            raise ApiError(0, "callback.unreachable", text, True) from error

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.aclose()

    async def keep_token(self) -> None:
        """Renews the token before it expires, until it lives as long as the run."""
        while self._deadline_at is None or self._expires_at + 2 < self._deadline_at:
            await asyncio.sleep(max(self._expires_at - _RENEWAL_SECONDS - self._now(), 0.0))
            try:
                renewed = await self.json("POST", "token")
                self._token, self._expires_at = renewed["token"], float(renewed["token_expires_at"])
            except ApiError as error:
                # The gateway renews no token of a run that has ended.
                if error.is_run_over:
                    return
                log.warning("run token not renewed, retrying in %g s: %s", _RENEWAL_PAUSE, error)
            await asyncio.sleep(_RENEWAL_PAUSE)

    def _now(self) -> float:
        return time.time() + self._offset

    def _url(self, path: tuple[str, ...]) -> str:
        for part in path:
            # Dot segments would leave the path, also percent-encoded.
            if part in ("", ".", ".."):
                raise ValueError(f"{part!r} is no key of the host API")
        return "/".join([self.base_url, *(urllib.parse.quote(part, safe="") for part in path)])

    def _client(self) -> httpx.AsyncClient:
        # One client for each run: its connections end with the run, and it belongs to the run's event loop.
        if self._http is None:
            self._http = http_client(self.base_url, verify=_trust(), transport=self._transport)
        return self._http


@functools.cache
def _trust() -> ssl.SSLContext:
    # Loading the certificates takes tens of milliseconds, so it is done once.
    return httpx.create_ssl_context()
