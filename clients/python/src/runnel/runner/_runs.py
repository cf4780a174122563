"""Runs of an endpoint."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ._stream import ResultStream

if TYPE_CHECKING:
    from .execution import Execution

_ENDED_RUNS, _ENDED_BYTES = 1024, 32 * 1024 * 1024


class Runs:
    """Live runs, and the results of ended resumable ones: the gateway may have been lost before it stored the last.

    Full of ended runs: the oldest are dropped, and a resume of them is answered with 404.
    """

    def __init__(self) -> None:
        self.live = dict[str, "Execution"]()
        # Oldest first.
        self._ended = dict[str, ResultStream]()

    def stream_of(self, run_id: str) -> ResultStream | None:
        """Results of a run."""
        execution = self.live.get(run_id)
        return self._ended.get(run_id) if execution is None else execution.stream

    def end(self, run_id: str, stream: ResultStream) -> None:
        """Frees the slot of a resumable run that has its terminal. Its results stay for a resume."""
        self.live.pop(run_id, None)
        self._ended[run_id] = stream
        stream.close = functools.partial(self._forget, run_id, stream)
        while len(self._ended) > _ENDED_RUNS or sum(one.buffer.bytes for one in self._ended.values()) > _ENDED_BYTES:
            del self._ended[next(iter(self._ended))]

    async def _forget(self, run_id: str, stream: ResultStream) -> None:
        # A later run may have the same id.
        if self._ended.get(run_id) is stream:
            del self._ended[run_id]
