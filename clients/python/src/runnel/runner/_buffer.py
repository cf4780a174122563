"""Results of a run between the function that yields them and the connections that read them."""

from __future__ import annotations

MAX_BYTES, MAX_RESULTS = 8 * 1024 * 1024, 10_000


class ResultBuffer:
    """Encoded results of one run by sequence. Full: the oldest sent ones are dropped, never an unsent one."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_results: int = MAX_RESULTS) -> None:
        self._max_bytes, self._max_results = max_bytes, max_results
        self._frames = dict[int, bytes]()
        self.bytes = 0
        # Sequences of the last result that was dropped, and of the last one that the connection took.
        self._dropped = self._sent = 0

    @property
    def last(self) -> int:
        """Sequence of the last result; 0 before the first one."""
        return self._dropped + len(self._frames)

    @property
    def has_unsent(self) -> bool:
        """True if the connection has not taken all results."""
        return self._sent < self.last

    @property
    def is_full(self) -> bool:
        """True if the results reach a bound: those that are left are unsent."""
        return self.bytes >= self._max_bytes or len(self._frames) >= self._max_results

    def add(self, frame: bytes) -> None:
        """Appends a result."""
        self._frames[self.last + 1] = frame
        self.bytes += len(frame)
        self._trim()

    def next(self) -> bytes | None:
        """First unsent result. Call `confirm` after it was sent."""
        return self._frames.get(self._sent + 1)

    def confirm(self) -> None:
        """Marks the first unsent result as sent."""
        self._sent += 1
        self._trim()

    def has_after(self, sequence: int) -> bool:
        """True if no result after this one is missing."""
        return self._dropped <= sequence <= self.last

    def restart(self, after: int) -> None:
        """Drops the results that the gateway has stored, and marks all others as unsent."""
        while self._dropped < after:
            self._drop()
        self._sent = after

    def _trim(self) -> None:
        while self.is_full and self._dropped < self._sent:
            self._drop()

    def _drop(self) -> None:
        self._dropped += 1
        self.bytes -= len(self._frames.pop(self._dropped))
