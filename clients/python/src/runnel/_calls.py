"""The calls of an open client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .errors import ClientClosedError

T = TypeVar("T")


class OpenCalls:
    """Runs the calls of one client, until it is closed."""

    def __init__(self) -> None:
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a call. Raises `ClientClosedError` as soon as the client is closed."""
        if self._is_closed:
            work.close()
            raise ClientClosedError
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            # `close` has removed the task. A cancel by the caller is passed on.
            if task in self._tasks:
                raise
            raise ClientClosedError from None
        finally:
            self._tasks.discard(task)

    async def close(self) -> None:
        """Cancels all calls and waits for their end."""
        self._is_closed = True
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
