"""Events of a run: what runners send as results, and what clients receive.

`RunEvent` is a union: a comparison of `event["type"]` tells a type checker the shape of `event["data"]`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from .types import Json, Message, MessageChunk, RunOutcome, StateScope

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired


class MessageDeltaPayload(TypedDict):
    chunk: MessageChunk


class MessageCompletedPayload(TypedDict):
    message: Message
    file_ids: NotRequired[list[str]]


class ToolCallStartedPayload(TypedDict):
    """For display. The gateway does not require these fields of a runner."""

    tool_call_id: NotRequired[str]
    tool_name: NotRequired[str]
    parameters: NotRequired[Json]


class ToolCallCompletedPayload(TypedDict):
    """For display, as above. A failed call has an `error`."""

    tool_call_id: NotRequired[str]
    tool_name: NotRequired[str]
    result: NotRequired[Json | None]
    error: NotRequired[str | None]


class ArtifactCreatedPayload(TypedDict):
    artifact_id: NotRequired[str]


class StateUpdatedPayload(TypedDict):
    scope: StateScope
    key: str
    value: Any


class ActionRequestedPayload(TypedDict):
    action: str
    target: NotRequired[Any]
    payload: NotRequired[Any]


class ProcessorLogPayload(TypedDict):
    text: str
    level: NotRequired[str | None]


class RunCompletedPayload(TypedDict):
    finish_reason: NotRequired[str]
    message: NotRequired[Message | None]
    outcome: NotRequired[RunOutcome | None]


class RunFailedPayload(TypedDict):
    code: NotRequired[str]
    message: NotRequired[str | None]
    error: NotRequired[str | None]
    retryable: NotRequired[bool]


class _Event(TypedDict):
    run_id: str
    sequence: int
    created_at: int
    source: str
    usage: NotRequired[Json | None]
    metadata: NotRequired[Json]


class MessageDelta(_Event):
    type: Literal["message.delta"]
    data: MessageDeltaPayload


class MessageCompleted(_Event):
    type: Literal["message.completed"]
    data: MessageCompletedPayload


class ToolCallStarted(_Event):
    type: Literal["tool.call.started"]
    data: ToolCallStartedPayload


class ToolCallCompleted(_Event):
    type: Literal["tool.call.completed"]
    data: ToolCallCompletedPayload


class ArtifactCreated(_Event):
    type: Literal["artifact.created"]
    data: ArtifactCreatedPayload


class StateUpdated(_Event):
    type: Literal["state.updated"]
    data: StateUpdatedPayload


class ActionRequested(_Event):
    """A question has the action `interaction.requested`; `metadata` then has its id as `interaction`."""

    type: Literal["action.requested"]
    data: ActionRequestedPayload


class ProcessorLog(_Event):
    type: Literal["processor.log"]
    data: ProcessorLogPayload


class RunCompleted(_Event):
    type: Literal["run.completed"]
    data: RunCompletedPayload


class RunFailed(_Event):
    type: Literal["run.failed"]
    data: RunFailedPayload


# An event of a run. `type` selects the shape of `data`. A newer gateway may send other types.
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
]
TERMINAL = ("run.completed", "run.failed")
