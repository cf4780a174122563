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
from collections.abc import AsyncGenerator, Callable
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
# A call that reached no gateway is repeated after this time, or after the resume.
_REPEAT_PAUSE = 1.0
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
        resume_within: float | None = None,
    ) -> None:
        self._deadline_at, self._transport, self.resume_within = deadline_at, transport, resume_within
        # Sequence of the last result of the run; set by its execution.
        self.last_result: Callable[[], int] = lambda: 0
        # Set by the next resume.
        self.moved = asyncio.Event()
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._take(access, gateway_now)

    def move(self, access: HostAccess, gateway_now: float) -> None:
        """Takes the access of a resume, which calls of a resumable run wait for."""
        self._take(access, gateway_now)
        self.moved.set()
        self.moved = asyncio.Event()

    def _take(self, access: HostAccess, gateway_now: float | None) -> None:
        self.base_url, self._token = access["base_url"].rstrip("/"), access["token"]
        self._expires_at = float(access["token_expires_at"])
        # Deadline and expiry are times of the gateway's clock.
        self._offset = 0.0 if gateway_now is None else gateway_now - time.time()

    def is_lost(self, error: ApiError) -> bool:
        """True if a call of a resumable run broke with its gateway: the effect of the call is unknown."""
        return self.resume_within is not None and error.code == "callback.unreachable"

    @property
    def token(self) -> str:
        """Run token: an API key for `openai/v1`, `anthropic`, `gemini` and `mcp` below `{base_url}`."""
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
        repeats = _Repeats(self, is_harmless=_is_repeatable(method, options.get("headers", {})))
        while True:
            try:
                async with self._call(method, path, long, options) as response:
                    return await read_bounded(response, max_bytes)
            except ApiError as error:
                failure = error
            if not await repeats.is_due(failure):
                raise failure

    async def events(self, method: str, *path: str, **options: Any) -> AsyncGenerator[Any, None]:
        """JSON of each event of a response that is a stream. An event `{"error": …}` raises `ApiError`."""
        repeats = _Repeats(self, is_harmless=False)
        while True:
            try:
                async with self._call(method, path, True, options) as response:
                    if response.status_code >= 300:
                        await read_bounded(response, MAX_RESPONSE_BYTES)
                    async for event in sse.decode(decoded(response)):
                        yield _data_of(event)
                    return
            except ApiError as error:
                failure = error
            if not await repeats.is_due(failure):
                raise failure

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
            **options.get("headers", {}),
        }
        options = {name: value for name, value in options.items() if name != "headers"}
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
        for client in self._clients.values():
            await client.aclose()

    async def keep_token(self) -> None:
        """Renews the token before it expires, until it lives as long as the run."""
        while self._deadline_at is None or self._expires_at + 2 < self._deadline_at:
            await asyncio.sleep(max(self._expires_at - _RENEWAL_SECONDS - self._now(), 0.0))
            try:
                moved = self.moved
                renewed = await self.json("POST", "token")
                # The token of a resume replaces those of the attempt before it.
                if not moved.is_set():
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
        # One client for each run and gateway: its connections end with the run, and it belongs to the run's event loop.
        if self.base_url not in self._clients:
            self._clients[self.base_url] = http_client(self.base_url, verify=_trust(), transport=self._transport)
        return self._clients[self.base_url]


def _is_repeatable(method: str, headers: dict[str, str]) -> bool:
    """True if a second execution has no second effect."""
    names = {name.lower() for name in headers}
    # The second execution of a conditional write would report a conflict with the first one.
    is_unconditional = method in ("PUT", "DELETE") and names.isdisjoint(("if-match", "if-none-match"))
    return method == "GET" or "idempotency-key" in names or is_unconditional


class _Repeats:
    """Repeats of one call in a resumable run: of one without effect after the resume, of a broken harmless one, too."""

    def __init__(self, host: HostApi, *, is_harmless: bool) -> None:
        self._host, self._moved, self._is_harmless = host, host.moved, is_harmless
        self._until: float | None = None

    async def is_due(self, error: ApiError) -> bool:
        """Waits for the resume. False if the call is not to be repeated, or no gateway resumed the run in time."""
        is_refused = error.code == "run_moved"
        is_unsent = isinstance(error.__cause__, (httpx.ConnectError, httpx.ConnectTimeout))
        is_broken = error.code == "callback.unreachable"
        if self._host.resume_within is None or not (is_refused or is_unsent or (is_broken and self._is_harmless)):
            return False
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + min(self._host.resume_within, self._host.seconds_left)
        pause = max(self._until - now, 0.0)
        if not is_refused:
            # The gateway may be reachable again without a resume.
            pause = min(pause, _REPEAT_PAUSE)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._moved.wait(), pause)
        is_moved, self._moved = self._moved.is_set(), self._host.moved
        return is_moved or (pause > 0 and not is_refused)


def _data_of(event: sse.ServerSentEvent) -> Any:
    data = json.loads(event.data)
    # The status is sent before the stream fails, so a later error arrives as an event.
    if "error" in data:
        error = data["error"]
        message, retryable = str(error.get("message")), bool(error.get("retryable"))
        raise ApiError(200, str(error.get("code")), message, retryable, error.get("details"))
    return data


@functools.cache
def _trust() -> ssl.SSLContext:
    # Loading the certificates takes tens of milliseconds, so it is done once.
    return httpx.create_ssl_context()
