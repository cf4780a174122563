"""Results that a runner yields. Plain text is short for `delta(text)`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypedDict, cast

from ..types import ArtifactMetadata, InteractionRequest, Json, Message, RunOutcome, StateScope

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired


class Result(TypedDict):
    """Result of a runner, without the fields that the adapter adds: run id and sequence."""

    type: str
    data: Json
    usage: NotRequired[Json]


def delta(text: str) -> Result:
    """Piece of the answer: yielded text is short for it."""
    return {"type": "message.delta", "data": {"chunk": {"role": "assistant", "content": text}}}


def message(content: str | Message, file_ids: list[str] | None = None) -> Result:
    """Complete message, an item of the history. It replaces the deltas before it. `file_ids`: at most 100."""
    body: Message = {"role": "assistant", "content": content} if isinstance(content, str) else content
    return {"type": "message.completed", "data": {"message": body, "file_ids": file_ids or []}}


def tool_started(tool_call_id: str, tool_name: str, parameters: Json) -> Result:
    """Shows a tool call to the client."""
    data = {"tool_call_id": tool_call_id, "tool_name": tool_name, "parameters": parameters}
    return {"type": "tool.call.started", "data": data}


def tool_completed(
    tool_call_id: str, tool_name: str, *, result: Json | None = None, error: str | None = None
) -> Result:
    """Shows the end of a tool call to the client."""
    data: Json = {"tool_call_id": tool_call_id, "tool_name": tool_name}
    data.update({"error": error} if error is not None else {"result": result or {}})
    return {"type": "tool.call.completed", "data": data}


def state(key: str, value: Any, scope: StateScope = "conversation") -> Result:
    """Stores a value for later runs. `ctx.state.put` does so at once, with a version."""
    return {"type": "state.updated", "data": {"scope": scope, "key": key, "value": value}}


def file(artifact: ArtifactMetadata) -> Result:
    """Announces a file that `ctx.files.upload` stored."""
    return {"type": "artifact.created", "data": {"artifact_id": artifact["artifact_id"]}}


def question(request: InteractionRequest) -> Result:
    """Asks a person. With `"await": True`, `ctx.interactions.wait` returns the answer."""
    return {"type": "action.requested", "data": {"action": "interaction.requested", "payload": cast(Json, request)}}


def log(text: str, level: str = "info") -> Result:
    """Log line among the run's events, not delivered to users. `level`: `debug`, `info`, `warning` or `error`.

    The text is cut after 65,536 characters.
    """
    return {"type": "processor.log", "data": {"text": text[:65_536], "level": level}}


def completed(finish_reason: str = "stop", outcome: RunOutcome | None = None) -> Result:
    """Ends the run. The adapter does so by itself when the function returns."""
    data: Json = {"finish_reason": finish_reason}
    if outcome is not None:
        data["outcome"] = outcome
    return {"type": "run.completed", "data": data}


def failed(code: str, text: str, retryable: bool = False) -> Result:
    """Ends the run as failed. Raise `RunFailed` instead where a function is nested.

    The text is for the client, and cut after 4,000 characters.
    """
    return {"type": "run.failed", "data": {"code": code, "message": text[:4000], "retryable": retryable}}
