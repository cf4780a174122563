"""One run: a function's results as server-sent events, with exactly one terminal event."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Union, cast

from ..client import text_of
from ..errors import ApiError
from ..events import TERMINAL
from ..types import Json
from . import results
from .failure import RunFailed
from .models import NoModelError
from .results import Result
from .run import RunContext

log = logging.getLogger("runnel.runner")

# Types of a yielded value and of a runner function.
Yielded = Union[str, Result]  # noqa: UP007 - an alias is evaluated at run time
RunFunction = Union[  # noqa: UP007
    Callable[[RunContext], AsyncIterator[Yielded]], Callable[[RunContext], Awaitable[Yielded | None]]
]

GREETING, KEEP_ALIVE = b": run\n\n", b": alive\n\n"
# The gateway gives a cancelled run 5 s to end.
_CANCEL_GRACE = 3.0


class Execution:
    """Executes one run while its response is read."""

    def __init__(self, run: RunContext, function: RunFunction, keep_alive_seconds: float) -> None:
        self.run = run
        self._function, self._keep_alive = function, keep_alive_seconds
        # Full: the function waits until the gateway has read its last result.
        self._queue: asyncio.Queue[Result] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """Raises `CancelledError` in the function, which then has 3 s for its last results."""
        if not self.run.is_cancelled:
            self.run.is_cancelled = True
            self._cancelled.set()
            if self._task is not None:
                self._task.cancel()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The body of the response. Closing it ends the function."""
        self._task = asyncio.create_task(self._work())
        keeper = asyncio.create_task(self.run.host.keep_token())
        try:
            yield GREETING
            sequence = 0
            async for result in self._results():
                if result is None:
                    yield KEEP_ALIVE
                    continue
                sequence += 1
                frame, is_terminal = self._frame(result, sequence)
                yield frame
                if is_terminal:
                    return
        finally:
            for task in (self._task, keeper):
                task.cancel()
            # A function that ignores its cancellation does not hold the response.
            await asyncio.wait((self._task, keeper), timeout=_CANCEL_GRACE)
            await self.run.host.aclose()

    async def _results(self) -> AsyncGenerator[Result | None, None]:
        """Results, None after each silent interval, and `cancelled` when the grace of a cancel is over."""
        waiting = asyncio.ensure_future(self._queue.get())
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        loop = asyncio.get_running_loop()
        grace_until: float | None = None
        try:
            while True:
                if cancelled.done() and grace_until is None:
                    grace_until = loop.time() + _CANCEL_GRACE
                if grace_until is None:
                    await asyncio.wait((waiting, cancelled), timeout=self._keep_alive, return_when="FIRST_COMPLETED")
                else:
                    await asyncio.wait((waiting,), timeout=max(grace_until - loop.time(), 0.0))
                if waiting.done():
                    yield waiting.result()
                    waiting = asyncio.ensure_future(self._queue.get())
                elif grace_until is not None:
                    if loop.time() >= grace_until:
                        yield results.failed("cancelled", "the run was cancelled")
                elif not cancelled.done():
                    yield None
        finally:
            waiting.cancel()
            cancelled.cancel()

    def _frame(self, result: Result, sequence: int) -> tuple[bytes, bool]:
        try:
            data = self._encoded(result, sequence)
        except (TypeError, ValueError) as error:
            log.error("run %s: a result is no JSON, the run fails: %s", self.run.run_id, error)
            result = results.failed("runner.exception", "the runner yielded a result that is no JSON")
            data = self._encoded(result, sequence)
        kind = result["type"]
        return f"event: {kind}\nid: {sequence}\ndata: {data}\n\n".encode(), kind in TERMINAL

    def _encoded(self, result: Result, sequence: int) -> str:
        wire: Json = {"run_id": self.run.run_id, **result, "sequence": sequence}
        if result["type"] in TERMINAL and self.run.models.usage:
            wire.setdefault("usage", self.run.models.usage)
        # ASCII: half of a surrogate pair in a text is valid JSON, but cannot be encoded as UTF-8.
        return json.dumps(wire, allow_nan=False)

    async def _work(self) -> None:
        run_id = self.run.run_id
        try:
            async with contextlib.aclosing(self._function_results()) as produced:
                async for result in produced:
                    await self._put(result)
                    if result["type"] in TERMINAL:
                        return
            last = results.completed()
        except asyncio.CancelledError:
            if not self.run.is_cancelled:
                raise
            last = results.failed("cancelled", "the run was cancelled")
        except RunFailed as failure:
            last = results.failed(failure.code, failure.text, failure.retryable)
        except NoModelError as error:
            last = results.failed("runner.no_model", str(error))
        except ApiError as error:
            log.warning("run %s fails by a host API call: %s", run_id, error)
            last = results.failed(error.code, error.message, error.retryable)
        except Exception as error:
            # Its text may hold secrets, so it goes to the log of the runner only.
            log.exception("run %s fails by an exception of the runner", run_id)
            text = f"the runner raised {type(error).__name__}; its log has the details"
            last = results.failed("runner.exception", text)
        await self._put(last)

    async def _put(self, result: Result) -> None:
        for one in (*self.run.missing.take(), result):
            await self._queue.put(one)

    async def _function_results(self) -> AsyncGenerator[Result, None]:
        """Results of the function. Deltas without a complete message after them become one.

        A blank line separates the text after a tool call from the text before it.
        """
        pieces: list[str] = []
        is_after_call = False
        async with contextlib.aclosing(self._yielded()) as yielded:
            async for item in yielded:
                result = _result_of(item)
                if result is None:
                    continue
                if result["type"] == "message.delta":
                    if is_after_call and (text := "".join(pieces)) and not text[-1].isspace():
                        _separate(result)
                    is_after_call = is_after_call and not _text_of_delta(result)
                    pieces.append(_text_of_delta(result))
                elif result["type"].startswith("tool.call."):
                    is_after_call = True
                elif result["type"] == "message.completed" or result["data"].get("message"):
                    pieces.clear()
                elif result["type"] == "run.completed" and pieces:
                    yield results.message("".join(pieces))
                    pieces.clear()
                yield result
        if any(pieces):
            yield results.message("".join(pieces))

    async def _yielded(self) -> AsyncGenerator[Any, None]:
        returned = self._function(self.run)
        if inspect.isasyncgen(returned):
            async with contextlib.aclosing(returned):
                async for item in returned:
                    yield item
        elif inspect.isawaitable(returned):
            answer = await returned
            if answer is not None:
                yield results.message(answer) if isinstance(answer, str) else answer
        else:
            raise TypeError("a runner is an `async def` that yields or returns text or results")


def _result_of(item: object) -> Result | None:
    if isinstance(item, str):
        return results.delta(item) if item else None
    if isinstance(item, dict) and isinstance(item.get("type"), str) and isinstance(item.get("data"), dict):
        return cast(Result, item)
    raise TypeError(f"a runner yields text, or a result of runnel.runner.results, not {type(item).__name__}")


def _separate(result: Result) -> None:
    """Puts a blank line before the text of a delta. One with `all_content`, or with parts, has its own form."""
    chunk = result["data"].get("chunk")
    if (
        isinstance(chunk, dict)
        and isinstance(text := chunk.get("content"), str)
        and text
        and "all_content" not in chunk
    ):
        result["data"] = {**result["data"], "chunk": {**chunk, "content": f"\n\n{text}"}}


def _text_of_delta(result: Result) -> str:
    """Text of a runner's own delta. The gateway would reject one without a chunk, so it fails the run here."""
    chunk = result["data"].get("chunk")
    if not isinstance(chunk, dict):
        raise TypeError("a message.delta has no data.chunk: yield text, or results.delta(text)")
    return text_of(chunk.get("content"))
