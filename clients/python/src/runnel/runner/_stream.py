"""Results of a run as server-sent events, for the connection that is attached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from ._buffer import ResultBuffer
from .failure import RunFailed

GREETING, KEEP_ALIVE = b": run\n\n", b": alive\n\n"


class ResultStream:
    """Results of one run. `close` ends the run: at once after its connection, or after `resume_within` seconds."""

    def __init__(self, keep_alive_seconds: float, resume_within: float | None) -> None:
        # The results of any other run are dropped as soon as they are sent.
        self.buffer = ResultBuffer() if resume_within is not None else ResultBuffer(max_results=0)
        self.resume_within, self.attempt, self.is_over = resume_within, 0, False
        self.close: Callable[[], Awaitable[None]] = _nothing
        # Seconds until the deadline of the run.
        self.seconds_left: Callable[[], float] = lambda: 0.0
        self._keep_alive = keep_alive_seconds
        self._frames: RunFrames | None = None
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] | None = None

    async def put(self, frame: bytes) -> None:
        """Adds a result. Raises `RunFailed` if the buffer is full and no connection is attached."""
        # Backpressure: the function is one result ahead of its connection.
        while self._frames is not None and self.buffer.has_unsent:
            self._taken.clear()
            await self._taken.wait()
        if self._frames is None and self.buffer.is_full:
            text = "no gateway was attached, and the buffer of results is full"
            raise RunFailed("runner.buffer_full", text, retryable=True)
        self.add(frame)

    def add(self, frame: bytes) -> None:
        """Adds a result without waiting. Results after the terminal are dropped."""
        if not self.is_over:
            self.buffer.add(frame)
            self._arrived.set()

    def end(self, frame: bytes) -> None:
        """Adds the terminal."""
        self.add(frame)
        self.is_over = True

    def attach(self, attempt: int, after: int) -> RunFrames:
        """Results after this sequence, for a connection that replaces the one before it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._frames is not None:
            self._frames.replaced.set()
        self.attempt = attempt
        self.buffer.restart(after)
        self._frames = RunFrames(self)
        self._arrived.set()
        # The gateway may have stored the result that the function waits for.
        self._taken.set()
        return self._frames

    async def detach(self, frames: RunFrames) -> None:
        """Ends the part of a connection. One that was replaced has none."""
        if self._frames is not frames:
            return
        self._frames = None
        self._taken.set()
        if self.resume_within is None:
            await self.close()
            return
        seconds = max(min(self.resume_within, self.seconds_left()), 0.0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abandon)

    def abandon(self) -> None:
        """Ends a run that no gateway can resume."""
        self.is_over = True
        # The loop has only a weak reference to a task.
        self._closing = asyncio.ensure_future(self.close())

    async def events(self, frames: RunFrames) -> AsyncGenerator[bytes, None]:
        """Frames of a connection, until the terminal or another connection."""
        yield GREETING
        while self._frames is frames:
            frame = self.buffer.next()
            if frame is not None:
                yield frame
                if self._frames is frames:
                    self.buffer.confirm()
                    self._taken.set()
            elif self.is_over:
                return
            elif not await self._has_news():
                yield KEEP_ALIVE

    async def _has_news(self) -> bool:
        """False after a silent interval."""
        self._arrived.clear()
        loop = asyncio.get_running_loop()
        silent_at = loop.time() + self._keep_alive
        timer = loop.call_at(silent_at, self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            timer.cancel()
        return loop.time() < silent_at


class RunFrames(AsyncIterator[bytes]):
    """Server-sent events of a run for one connection. The run is attached to it until they end or are closed."""

    def __init__(self, results: ResultStream) -> None:
        self._results, self._events = results, results.events(self)
        # Set when another connection has the run: this one is to be closed.
        self.replaced = asyncio.Event()

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._events)
        except BaseException:
            await self._results.detach(self)
            raise

    async def aclose(self) -> None:
        """Detaches the connection, also one whose events were never read."""
        await self._events.aclose()
        await self._results.detach(self)


async def _nothing() -> None:
    """The run has not begun."""
