"""The events of one run, resumed after each broken connection."""

from __future__ import annotations

import contextlib
import json
import logging
import types
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx

from . import sse
from ._body import decoded
from ._calls import OpenCalls
from ._paths import segment
from ._retry import Backoff, RetryLater, raise_for
from .errors import GatewayUnreachableError, NoRunError, RunnelError, StreamLostError
from .events import TERMINAL, RunEvent
from .types import Json

log = logging.getLogger("runnel")

# The gateway sends a comment after 15 s of silence.
_TIMEOUT = httpx.Timeout(30.0, connect=10.0, read=45.0)


class RunStream(AsyncIterator[RunEvent]):
    """Async iterator that yields each event of a run once, up to its terminal event.

    `run_id` is known from the first event on. `after` is the sequence of the last event. Close a stream that you
    leave early: by `aclose()`, or by `async with`.
    """

    def __init__(
        self, http: httpx.AsyncClient, calls: OpenCalls, patience: float, run_id: str | None, after: int
    ) -> None:
        self.run_id, self.after = run_id, after
        self._http, self._calls, self._patience = http, calls, patience
        self._post: tuple[Json, dict[str, str]] | None = None
        self._events: AsyncGenerator[RunEvent, None] = self._follow()

    @classmethod
    def of_post(
        cls, http: httpx.AsyncClient, calls: OpenCalls, patience: float, event: Json, headers: dict[str, str]
    ) -> RunStream:
        """The stream of an event that is posted on the first iteration. `headers` make the post idempotent."""
        stream = cls(http, calls, patience, None, 0)
        stream._post = event, headers
        return stream

    def __aiter__(self) -> RunStream:
        return self

    async def __anext__(self) -> RunEvent:
        return await self._calls.run(self._next())

    async def _next(self) -> RunEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Closes the connection. The run continues."""
        await self._events.aclose()

    async def __aenter__(self) -> RunStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        await self.aclose()

    async def _follow(self) -> AsyncGenerator[RunEvent, None]:
        backoff = Backoff(self._patience)
        while True:
            cause: Exception | None = None
            try:
                async with contextlib.aclosing(self._connection()) as events:
                    async for event in events:
                        # Each event is yielded once, also if a resumed stream overlaps the one before.
                        if event["sequence"] <= self.after:
                            continue
                        self.after = event["sequence"]
                        # Progress restarts the patience: a long run survives many short outages.
                        backoff.reset()
                        yield event
                        if event["type"] in TERMINAL:
                            return
            except (httpx.RequestError, RetryLater) as error:
                cause = error
            except _EndOfRun:
                return
            reason = str(cause) or type(cause).__name__ if cause else "the stream ended before the run"
            log.info("run %s: resuming after event %s: %s", self.run_id, self.after, reason)
            if not await backoff.wait(cause):
                raise self._lost(cause, reason) from cause

    async def _connection(self) -> AsyncGenerator[RunEvent, None]:
        """The events of one response."""
        async with self._request() as response:
            if response.status_code == 204:
                raise _EndOfRun
            if response.status_code != 200:
                await response.aread()
                raise_for(response)
                self._accept(response.json())
                return
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise RunnelError(f"no event stream at {response.url}: check the URL of the gateway")
            self.run_id = response.headers.get("runnel-run-id", self.run_id)
            async for event in sse.decode(decoded(response)):
                # Events without an id are notices of the gateway, not events of the run.
                if event.id:
                    yield json.loads(event.data)

    def _request(self) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        headers = {"accept": "text/event-stream"}
        options: dict[str, Any] = {"headers": headers, "timeout": _TIMEOUT}
        # Before the first event, the post is repeated: it is idempotent. If an active run has absorbed the event, only
        # the response to the post names the sequence at which the stream begins.
        if self._post and not (self.run_id and self.after):
            event, idempotent = self._post
            headers.update(idempotent)
            return self._http.stream("POST", "/v1/events", json=event, **options)
        if self.after:
            headers["last-event-id"] = str(self.after)
        return self._http.stream("GET", f"/v1/runs/{segment(self.run_id or '')}/events", **options)

    def _accept(self, accepted: Json) -> None:
        """A 202 in place of a stream: the event started no run, or the gateway does not stream it."""
        run_id = accepted.get("run_id")
        if not run_id:
            raise NoRunError(str(accepted.get("event_id")), accepted.get("reason") or "unknown", accepted.get("hint"))
        self.run_id, self.after = str(run_id), int(accepted.get("last_sequence") or 0)
        # The next attempt reads the run's own stream: a repeated post would return the same 202.
        self._post = None

    def _lost(self, cause: Exception | None, reason: str) -> RunnelError:
        if self.run_id is not None:
            return StreamLostError(self.run_id, self.after, reason)
        if isinstance(cause, RetryLater):
            return cause.error
        return GatewayUnreachableError(f"no gateway at {self._http.base_url} for {self._patience:g} s: {reason}")


class _EndOfRun(Exception):
    """The terminal event was delivered before."""
