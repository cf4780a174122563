"""An event loop in a thread, for callers without asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from .errors import ClientClosedError

T = TypeVar("T")


class LoopThread:
    """Runs coroutines on its own event loop. The thread starts with the first call, also after a fork."""

    def __init__(self) -> None:
        # The garbage collector may close an iterator while the lock is held.
        self._lock = threading.RLock()
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine. An interrupt of the caller cancels it."""
        with self._lock:
            if self._is_stopped:
                work.close()
                raise ClientClosedError
            future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        # Ctrl-C interrupts only the calling thread: without the cancel, the coroutine would continue.
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator. Closing the result closes the iterator, if it has `aclose`."""
        try:
            while True:
                item = self.call(anext_or_end(items))
                if isinstance(item, _End):
                    return
                yield item
        finally:
            if (close := getattr(items, "aclose", None)) is not None:
                self._close(close())

    def _close(self, work: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._loop is None:
                work.close()
                return
            if threading.current_thread() is self._thread:
                # The garbage collector closes an iterator on any thread; waiting for the loop here would block it.
                asyncio.run_coroutine_threadsafe(work, self._loop)
                return
        with contextlib.suppress(ClientClosedError):
            self.call(work)

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Runs a last coroutine, and ends the loop and its thread. Later calls raise `ClientClosedError`."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._is_stopped = True
        if loop is None or thread is None or not thread.is_alive():
            last.close()
            return
        asyncio.run_coroutine_threadsafe(_finish(last), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A thread does not survive a fork; a forked worker starts its own.
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="runnel", daemon=True)
                self._thread.start()
            return self._loop


async def _finish(last: Coroutine[Any, Any, None]) -> None:
    """Runs the last coroutine of a loop, and waits for the calls that it has ended."""
    try:
        await last
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)


class _End:
    """The end of an async iterator."""


async def anext_or_end(items: AsyncIterator[T]) -> T | _End:
    """The next item. `StopAsyncIteration` is no result of a coroutine."""
    try:
        return await anext(items)
    except StopAsyncIteration:
        return _End()
