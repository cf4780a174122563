"""Retries with exponential backoff, bounded by the time without progress."""

from __future__ import annotations

import asyncio
import random

import httpx

from .errors import ApiError, error_of

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_RETRIED = frozenset((408, 425, 429, 500, 502, 503, 504))


class RetryLater(Exception):
    """A response that a later attempt may improve."""

    def __init__(self, error: ApiError, seconds: float) -> None:
        super().__init__(str(error))
        self.error, self.seconds = error, seconds


class Backoff:
    """Pauses between attempts: doubled up to 8 s, with jitter, and never past `patience` seconds without progress."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.reset()

    def reset(self) -> None:
        """Call it after progress."""
        self._pause = _FIRST_PAUSE
        self._until = asyncio.get_running_loop().time() + self._patience

    async def wait(self, cause: Exception | None) -> bool:
        """Sleeps before the next attempt. False if the patience is over."""
        # Jitter keeps clients of one gateway from retrying in step.
        pause = self._pause * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
        if isinstance(cause, RetryLater):
            pause = max(pause, cause.seconds)
        if asyncio.get_running_loop().time() + pause > self._until:
            return False
        await asyncio.sleep(pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return True


def raise_for(response: httpx.Response) -> None:
    """Raises for an error response to the client whose body was read: `RetryLater` or `ApiError`."""
    if response.status_code < 300:
        return
    error = error_of(response)
    if response.status_code == 401:
        raise ApiError(
            401, error.code, "the API key was rejected; check api_key or RUNNEL_API_KEY", False, error.details
        )
    if response.status_code in _RETRIED:
        seconds = response.headers.get("retry-after", "")
        raise RetryLater(error, float(seconds) if seconds.isdecimal() else 0.0)
    raise error
