"""One run: the results of its function, with exactly one terminal."""

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
from ._runs import Runs
from ._stream import ResultStream
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

# The gateway gives a cancelled run 5 s to end.
_CANCEL_GRACE = 3.0


class Execution:
    """Executes one run in a task of its own. `stream` has its results."""

    def __init__(self, run: RunContext, function: RunFunction, stream: ResultStream, runs: Runs) -> None:
        self.run, self.stream = run, stream
        self._function, self._runs = function, runs
        # Not by way of `run`: the stream outlives the run, and its context is large.
        host, buffer = run.host, stream.buffer
        stream.close, stream.seconds_left = self._close, lambda: host.seconds_left
        host.last_result = lambda: buffer.last
        runs.live[run.run_id] = self
        self._task = asyncio.create_task(self._main())

    def cancel(self) -> None:
        """Raises `CancelledError` in the function, which then has 3 s for its last results."""
        if not self.run.is_cancelled:
            self.run.is_cancelled = True
            self._task.cancel()
            asyncio.get_running_loop().call_later(_CANCEL_GRACE, self._end, _cancelled())

    async def _close(self) -> None:
        """Ends a run that has lost its connection, or whose results were read."""
        self._runs.live.pop(self.run.run_id, None)
        if self.stream.resume_within is not None:
            log.warning("no gateway can resume run %s, cancelling it", self.run.run_id)
        self._task.cancel()
        # A function that ignores its cancellation does not hold the response.
        await asyncio.wait((self._task,), timeout=_CANCEL_GRACE)

    async def _main(self) -> None:
        keeper = asyncio.create_task(self.run.host.keep_token())
        try:
            await self._work()
        finally:
            keeper.cancel()
            # A cancel of this task closes all connections, too.
            await asyncio.shield(self.run.host.aclose())

    async def _put(self, result: Result) -> None:
        if result["type"] in TERMINAL:
            self._end(result)
            return
        for one in (*self.run.missing.take(), result):
            await self.stream.put(self._frame(one))

    def _end(self, terminal: Result) -> None:
        """Adds the terminal, also beyond the bounds of the buffer."""
        if self.stream.is_over:
            return
        for one in self.run.missing.take():
            self.stream.add(self._frame(one))
        self.stream.end(self._frame(terminal))
        if self.stream.resume_within is not None:
            self._runs.end(self.run.run_id, self.stream)

    def _frame(self, result: Result) -> bytes:
        sequence = self.stream.buffer.last + 1
        try:
            data = self._encoded(result, sequence)
        except (TypeError, ValueError) as error:
            log.error("run %s: a result is no JSON, the run fails: %s", self.run.run_id, error)
            raise RunFailed("runner.exception", "the runner yielded a result that is no JSON") from None
        return f"event: {result['type']}\nid: {sequence}\ndata: {data}\n\n".encode()

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
            last = _cancelled()
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
        self._end(last)

    async def _function_results(self) -> AsyncGenerator[Result, None]:
        """Results of the function. Deltas without a complete message after them become one.

        A blank line separates the text after a tool call from the text before it. An attempt from a checkpoint has only
        the end of the text, so the gateway joins its deltas with those before it.
        """
        pieces: list[str] = []
        is_after_call = False
        joins = self.run.resume is None
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
                elif result["type"] == "run.completed" and pieces and joins:
                    yield results.message("".join(pieces))
                    pieces.clear()
                yield result
        if any(pieces) and joins:
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


def _cancelled() -> Result:
    return results.failed("cancelled", "the run was cancelled")


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
