"""Memory of request bodies whose signature is not verified yet, bounded for the process."""

from __future__ import annotations

import threading

from .endpoint import Rejection

# Four of the largest bodies that a gateway sends.
_PROCESS_BYTES = 32 * 1024 * 1024


class UnverifiedBytes:
    """Bytes of all bodies that are being read. Full: the oldest unfinished bodies are dropped, so that stalled senders
    do not lock out the gateway, whose bodies arrive at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._total = limit, 0
        # Frameworks with threads share it. Oldest first.
        self._lock, self._bodies = threading.Lock(), dict[int, bytearray]()
        self._next = 0

    def begin(self) -> int:
        """Number of a new body. Call `end` when it is complete or dropped."""
        with self._lock:
            self._next += 1
            self._bodies[self._next] = bytearray()
            return self._next

    def add(self, number: int, piece: bytes) -> int:
        """Adds to a body and returns its size. Raises `Rejection` if the body was dropped."""
        with self._lock:
            body = self._bodies.get(number)
            if body is None:
                raise Rejection(503, "rate_limited", "too many unfinished bodies; send it again", 1)
            body += piece
            self._total += len(piece)
            for oldest in list(self._bodies) if self._total > self._limit else ():
                if self._total <= self._limit:
                    break
                if oldest != number and self._bodies[oldest]:
                    self._remove(oldest)
            return len(body)

    def end(self, number: int) -> bytes:
        """The body, which counts no more. Empty if it was dropped."""
        with self._lock:
            return self._remove(number)

    def _remove(self, number: int) -> bytes:
        body = self._bodies.pop(number, b"")
        self._total -= len(body)
        return bytes(body)


PROCESS = UnverifiedBytes(_PROCESS_BYTES)
