"""Results of a run as server-sent events, for the connection that is attached."""

import asyncio
import time
import typing
from collections.abc import AsyncIterator

from .limits import LIMITS

_GREETING, _HEARTBEAT = b": hi\n\n", b": heartbeat\n\n"


class ResultStream:
    """Encoded results of one run, by sequence. Full: the oldest sent ones are dropped, never an unsent one.

    `on_lost` is called when no connection was attached for `LIMITS.resume_seconds`, at most until the deadline.
    """

    def __init__(self, deadline: float | None, on_lost: typing.Callable[[], None]) -> None:
        self.attempt, self.is_over = 0, False
        # Set while the stream has ended and no connection reads it.
        self.closed = asyncio.Event()
        self._deadline, self._on_lost = deadline, on_lost
        self._frames: dict[int, bytes] = {}
        self.bytes = 0
        # Sequences of the last result that was dropped, and of the last one that the connection took.
        self._dropped = self._sent = 0
        self._connection: object = None
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def last(self) -> int:
        """Sequence of the last result; 0 before the first one."""
        return self._dropped + len(self._frames)

    @property
    def is_full(self) -> bool:
        """True if the results reach a bound: those that are left are unsent."""
        return self.bytes >= LIMITS.buffered_bytes or len(self._frames) >= LIMITS.buffered_results

    async def ready(self) -> None:
        """Waits while the attached connection has too many unsent results."""
        while self._connection and (self.is_full or self.last - self._sent >= LIMITS.queued_results):
            self._taken.clear()
            await self._taken.wait()

    def add(self, frame: bytes) -> None:
        """Appends a result."""
        self._frames[self.last + 1] = frame
        self.bytes += len(frame)
        self._trim()
        self._arrived.set()

    def end(self) -> None:
        """Ends the stream after the results so far."""
        self.is_over = True
        self._arrived.set()
        if self._connection is None:
            self.closed.set()

    def has_after(self, sequence: int) -> bool:
        """True if no result after this one is missing."""
        return self._dropped <= sequence <= self.last

    def attach(self, attempt: int, after: int) -> object:
        """A connection for the results after this sequence. It replaces the one before it."""
        if self._timer is not None:
            self._timer.cancel()
        self.attempt, self._connection = attempt, object()
        # The gateway has stored the results up to here.
        while self._dropped < after:
            self._drop()
        self._sent = after
        self.closed.clear()
        self._arrived.set()
        self._taken.set()
        return self._connection

    def detach(self, connection: object) -> None:
        """Ends the part of a connection. One that was replaced has none."""
        if self._connection is not connection:
            return
        self._connection = None
        self._taken.set()
        if self.is_over:
            self.closed.set()
        seconds = LIMITS.resume_seconds
        if self._deadline is not None:
            seconds = max(min(seconds, self._deadline - time.time()), 0.0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_lost)

    async def frames(self, connection: object) -> AsyncIterator[bytes]:
        """Frames of a connection, until the end or another connection."""
        yield _GREETING
        while self._connection is connection:
            frame = self._frames.get(self._sent + 1)
            if frame is not None:
                yield frame
                if self._connection is connection:
                    self._sent += 1
                    self._trim()
                    self._taken.set()
            elif self.is_over:
                return
            else:
                self._arrived.clear()
                try:
                    async with asyncio.timeout(LIMITS.heartbeat_seconds):
                        await self._arrived.wait()
                except TimeoutError:
                    yield _HEARTBEAT

    def _trim(self) -> None:
        while self.is_full and self._dropped < self._sent:
            self._drop()

    def _drop(self) -> None:
        self._dropped += 1
        self.bytes -= len(self._frames.pop(self._dropped))
