"""Errors of the client and of host API calls."""

from __future__ import annotations

from typing import Any

import httpx


class RunnelError(Exception):
    """Base of all errors of this package."""


class ApiError(RunnelError):
    """Rejection of a request by the gateway, or a failed host API call.

    `status` is the HTTP status, 0 for a host API call without a response. `code`, `message`, `retryable` and `details`
    come from the response; many codes have a `details["reason"]`.
    """

    def __init__(
        self, status: int, code: str, message: str, retryable: bool = False, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status, self.code, self.message, self.retryable = status, code, message, retryable
        self.details = details or {}

    @property
    def is_run_over(self) -> bool:
        """True if the run of a host API call has ended, was cancelled, or is past its deadline.

        A deadline that only a tool, a model or a knowledge base has missed is no end of the run.
        """
        if self.code == "deadline_exceeded":
            return not self.retryable and self.details.get("reason") != "upstream_timeout"
        return self.status == 401 or self.code == "cancelled"


class GatewayUnreachableError(RunnelError):
    """Missing response within the patience of the client. The outcome of the last request is unknown."""


class ClientClosedError(RunnelError):
    """Call of a client that is closed, or that was closed meanwhile. The outcome of its last request is unknown."""

    def __init__(self) -> None:
        super().__init__("the client was closed: create a new one for further calls")


class NoRunError(RunnelError):
    """Event that the gateway stored without a run: for example, no agent takes events of this type.

    `reason` is `no_agent`, for example. `hint` is a sentence with the next step.
    """

    def __init__(self, event_id: str, reason: str, hint: str | None = None) -> None:
        hint = hint or "`runnel explain` shows which agents take it"
        super().__init__(f"event {event_id} started no run: {reason}; {hint}")
        self.event_id, self.reason, self.hint = event_id, reason, hint


class StreamLostError(RunnelError):
    """Stream that broke and could not be resumed in time. The run may be live: `follow(run_id, after)`.

    `after` is the sequence of the last event.
    """

    def __init__(self, run_id: str, after: int, reason: str) -> None:
        super().__init__(f"the stream of run {run_id} broke after event {after}: {reason}")
        self.run_id, self.after = run_id, after


def error_of(response: httpx.Response) -> ApiError:
    """The error of a response whose body was read. A proxy's error has no body of the gateway."""
    status = response.status_code
    try:
        error = response.json()["error"]
        code, message = str(error["code"]), str(error["message"])
        details = error.get("details")
        return ApiError(
            status, code, message, bool(error.get("retryable")), details if isinstance(details, dict) else None
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        retryable = status == 429 or status >= 500
        return ApiError(status, f"http_{status}", f"HTTP {status} without an error of the gateway", retryable)
