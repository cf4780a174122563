"""One live run: credentials, results, and cancellation."""

import asyncio
import contextvars
import math
import time
import typing

from . import results
from .limits import LIMITS
from .payload import Payload, mapping
from .stream import ResultStream

# A token this near its end is renewed.
_RENEWAL_SECONDS = 60.0
# No token outlives the deadline; token ends are rounded to seconds.
_ROUNDING_SECONDS = 2.0
# Smaller clock differences count as zero: the timestamp of a signature has a resolution of 1 s.
_SKEW_SECONDS = 2.0


class Run:
    """A run of the gateway. `on_lost` is called if no gateway resumes it in time."""

    def __init__(
        self, context: Payload, host: Payload, headers: typing.Mapping[str, str], on_lost: typing.Callable[[], None]
    ) -> None:
        self.id: str = context["run_id"]
        self.context = context
        self.traceparent = headers.get("traceparent")
        runtime = mapping(context.get("runtime"))
        self.version = str(runtime.get("langbot_version") or "runnel")
        # Set by the next resume.
        self.moved = asyncio.Event()
        self._take(host, headers)
        self.deadline = _number(runtime.get("deadline_at"))
        if self.deadline is not None:
            self.deadline -= self.skew
        self.stream = ResultStream(self.deadline, on_lost)
        limits = mapping(mapping(runtime.get("metadata")).get("limits"))
        self._outbox = results.Outbox(self.id, int(limits.get("line_bytes") or LIMITS.line_bytes))
        self._order = asyncio.Lock()
        self.is_over = False
        # Variables of the SDK's query API.
        self.variables: Payload = dict(mapping(context.get("variables")))
        # True for a runner for events: it sends messages by the SDK's reply API.
        self.replies = False
        self.end: Payload | None = None
        self.task: asyncio.Task[None] | None = None

    def move(self, host: Payload, headers: typing.Mapping[str, str]) -> None:
        """Takes the access of a resume, which calls of the host API wait for."""
        self._take(host, headers)
        self.moved.set()
        self.moved = asyncio.Event()

    def _take(self, host: Payload, headers: typing.Mapping[str, str]) -> None:
        self.skew = _skew(headers.get("x-bridge-signed-at"))
        self.base_url = str(host["base_url"]).rstrip("/")
        self.replace_token(str(host["token"]), host.get("token_expires_at"))

    def seconds_left(self) -> float:
        """Seconds until the deadline of the run."""
        return math.inf if self.deadline is None else self.deadline - time.time()

    async def put(self, result: Payload) -> Payload:
        """Numbers a result and adds it to the stream. Waits while the gateway does not read.

        Returns the last event that was sent for it. After the run's end nothing is sent. Once the run was cancelled,
        a failure has the code of the cancel: that of the runner, such as one of a broken model call, follows from it.
        """
        if self.end is not None and result["type"] == "run.failed":
            result = self.end
        is_terminal = result["type"] in results.TERMINAL
        async with self._order:
            sent: Payload = dict(result)
            await self.stream.ready()
            if self.is_over:
                return sent
            if self.stream.is_full and not is_terminal:
                text = "no gateway was attached, and the buffer of results is full"
                self._stop(results.failed(self.id, text, "runner.buffer_full", retryable=True), 0.0)
                return sent
            for one in self._outbox.take(result):
                sent = {**one, "run_id": self.id, "sequence": self.stream.last + 1}
                self.stream.add(results.wire(sent))
            self.is_over = is_terminal
            return sent

    def headers(self) -> dict[str, str]:
        """Headers of a call back to the gateway."""
        trace = {"traceparent": self.traceparent} if self.traceparent else {}
        return {"authorization": f"Bearer {self.token}", **trace}

    def replace_token(self, token: str, expires_at: typing.Any) -> None:
        """Takes a renewed token."""
        self.token, self.token_expires_at = token, self._local_time(expires_at)

    def renewal_in(self) -> float | None:
        """Seconds until the token is to be renewed, or `None` when it lives as long as the run."""
        if self.token_expires_at is None:
            return None
        if self.deadline is not None and self.token_expires_at >= self.deadline - _ROUNDING_SECONDS:
            return None
        left = self.token_expires_at - time.time()
        return max(left - _RENEWAL_SECONDS, left / 2, 1.0)

    def cancel(self, grace: float) -> None:
        """Ends the run as `cancelled`, after a grace in which the runner may end by itself."""
        self._stop(results.failed(self.id, "the run was cancelled", "cancelled"), grace)

    def shut_down(self) -> None:
        """Ends the run because the bridge stops."""
        text = "the runner was stopped while the run was going on: post the event again"
        self._stop(results.failed(self.id, text, "runner.shutdown", retryable=True), 0.0)

    def abandon(self) -> None:
        """Ends the run without a result: no gateway resumes it."""
        self.is_over = True
        self._cancel_task(LIMITS.cancel_attempts)

    def _stop(self, end: Payload, grace: float) -> None:
        if self.end is None:
            self.end = end
            asyncio.get_running_loop().call_later(grace, self._cancel_task, LIMITS.cancel_attempts)

    def _cancel_task(self, attempts: int) -> None:
        if self.task is None or self.task.done() or attempts == 0:
            return
        self.task.cancel()
        # `wait_for` of some Python versions can swallow a cancel.
        again = LIMITS.cancel_again_seconds
        asyncio.get_running_loop().call_later(again, self._cancel_task, attempts - 1)

    def _local_time(self, gateway_time: typing.Any) -> float | None:
        seconds = _number(gateway_time)
        return None if seconds is None else seconds - self.skew


def _number(value: typing.Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _skew(signed_at: str | None) -> float:
    """Seconds by which the gateway's clock is ahead of ours."""
    ahead = float(signed_at) - time.time() if signed_at else 0.0
    return ahead if abs(ahead) > _SKEW_SECONDS else 0.0


# The run that the calling task belongs to: for calls of the SDK that name none.
current_run: contextvars.ContextVar[Run | None] = contextvars.ContextVar("current_run", default=None)
