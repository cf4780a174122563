"""Events of a run: what runners send as results, and what clients receive.

`RunEvent` is a union: a comparison of `event["type"]` gives a type checker the shape of `event["data"]`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from .types import Json, Message, MessageChunk, Principal, RunOutcome, StateScope

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired


class MessageDeltaPayload(TypedDict):
    """Data of `message.delta`."""

    chunk: MessageChunk


class MessageCompletedPayload(TypedDict):
    """Data of `message.completed`: a complete message, which replaces the deltas before it."""

    message: Message
    file_ids: NotRequired[list[str]]


class ToolCallStartedPayload(TypedDict):
    """Data of `tool.call.started`, for display. The gateway does not require these fields of a runner."""

    tool_call_id: NotRequired[str]
    tool_name: NotRequired[str]
    parameters: NotRequired[Json]


class ToolCallCompletedPayload(TypedDict):
    """Data of `tool.call.completed`, for display. A failed call has an `error`."""

    tool_call_id: NotRequired[str]
    tool_name: NotRequired[str]
    result: NotRequired[Json | None]
    error: NotRequired[str | None]


class ArtifactCreatedPayload(TypedDict):
    """Data of `artifact.created`: `download` reads the file."""

    artifact_id: NotRequired[str]


class StateUpdatedPayload(TypedDict):
    """Data of `state.updated`."""

    scope: StateScope
    key: str
    value: Any


class ActionRequestedPayload(TypedDict):
    """Data of `action.requested`: for a question, `payload` is an `InteractionRequest`."""

    action: str
    target: NotRequired[Any]
    payload: NotRequired[Any]
    # Of a platform action: its key, and the seconds in which a program must claim it.
    idempotency_key: NotRequired[str | None]
    timeout_seconds: NotRequired[int | None]


class ProcessorLogPayload(TypedDict):
    """Data of `processor.log`, a line for developers. `level` is `debug`, `info`, `warning` or `error`."""

    text: str
    level: NotRequired[str | None]


class RunCompletedPayload(TypedDict):
    """Data of `run.completed`. Without an `outcome` it is `ok`."""

    finish_reason: NotRequired[str]
    message: NotRequired[Message | None]
    outcome: NotRequired[RunOutcome | None]


class RunFailedPayload(TypedDict):
    """Data of `run.failed`: the text of the failure is in `message` or `error`."""

    code: NotRequired[str]
    message: NotRequired[str | None]
    error: NotRequired[str | None]
    retryable: NotRequired[bool]


# Not a class: `from` is a keyword of Python.
RunRestartedPayload = TypedDict(
    "RunRestartedPayload",
    {"attempt": int, "code": str, "from": Literal["start", "checkpoint"], "after": int},
)
RunRestartedPayload.__doc__ = """Data of `run.restarted`: the runner was lost, and another attempt begins.

The events between `after` and this one are superseded; 0: all earlier ones. A delta with `all_content` follows, if the
text of the open message changes by that.
"""


class RunAmendedPayload(TypedDict):
    """Data of `run.amended`: a person allowed calls of a tool that the run was not granted.

    `arguments` has rules by JSON pointer; without it, exactly the call of the question is allowed. Without `count`, any
    number of calls is. `expires_at` is in epoch seconds.
    """

    approval_id: str
    interaction_id: NotRequired[str | None]
    tool: str
    arguments: NotRequired[Json | None]
    count: NotRequired[int | None]
    expires_at: int
    allowed_by: Principal


class _Event(TypedDict):
    """Members of all events. `sequence` counts from 1 without gaps, `created_at` is in epoch seconds."""

    run_id: str
    sequence: int
    created_at: int
    source: str
    usage: NotRequired[Json | None]
    metadata: NotRequired[Json]


class MessageDelta(_Event):
    """Event with a fragment of the answer: see `delta_text`."""

    type: Literal["message.delta"]
    data: MessageDeltaPayload


class MessageCompleted(_Event):
    """Event with a complete message."""

    type: Literal["message.completed"]
    data: MessageCompletedPayload


class ToolCallStarted(_Event):
    """Event at the start of a tool call."""

    type: Literal["tool.call.started"]
    data: ToolCallStartedPayload


class ToolCallCompleted(_Event):
    """Event at the end of a tool call."""

    type: Literal["tool.call.completed"]
    data: ToolCallCompletedPayload


class ArtifactCreated(_Event):
    """Event for a file of the run."""

    type: Literal["artifact.created"]
    data: ArtifactCreatedPayload


class StateUpdated(_Event):
    """Event for a value that the run stored."""

    type: Literal["state.updated"]
    data: StateUpdatedPayload


class ActionRequested(_Event):
    """Event for an action of the runner.

    A question has the action `interaction.requested`; the gateway's id of it is `metadata["interaction"]["id"]`.
    """

    type: Literal["action.requested"]
    data: ActionRequestedPayload


class ProcessorLog(_Event):
    """Event with a log line of the runner or the gateway."""

    type: Literal["processor.log"]
    data: ProcessorLogPayload


class RunCompleted(_Event):
    """Terminal event of a run that completed."""

    type: Literal["run.completed"]
    data: RunCompletedPayload


class RunFailed(_Event):
    """Terminal event of a run that failed, was cancelled, or exceeded its deadline."""

    type: Literal["run.failed"]
    data: RunFailedPayload


class RunRestarted(_Event):
    """Event of the gateway: the run starts again, and results before it are superseded."""

    type: Literal["run.restarted"]
    data: RunRestartedPayload


class RunAmended(_Event):
    """Event of the gateway: a person added calls of a tool to the grant of the run."""

    type: Literal["run.amended"]
    data: RunAmendedPayload


# Event of a run. `type` selects the shape of `data`. Later versions may send further types: ignore them.
RunEvent = Union[  # noqa: UP007 - a `|` of TypedDicts needs Python 3.11 at run time
    MessageDelta,
    MessageCompleted,
    ToolCallStarted,
    ToolCallCompleted,
    ArtifactCreated,
    StateUpdated,
    ActionRequested,
    ProcessorLog,
    RunCompleted,
    RunFailed,
    RunRestarted,
    RunAmended,
]
TERMINAL = ("run.completed", "run.failed")
