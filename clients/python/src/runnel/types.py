"""Wire types of the API, as `openapi/gateway.json` and `openapi/runner.json` define them.

All are dictionaries with the fields of the JSON. Responses may have more fields than are listed here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired

Json = dict[str, Any]

StateScope = Literal["conversation", "actor", "subject", "runner", "binding"]
RunStatus = Literal["created", "queued", "claimed", "running", "completed", "failed", "cancelled", "timeout"]
RunOutcome = Literal["ok", "not_done", "need_input"]
InteractionFieldType = Literal["text", "textarea", "select", "multiselect", "number", "boolean", "file"]


# --- messages ---


class ImageUrl(TypedDict):
    url: str


class ContentElement(TypedDict):
    type: str
    text: NotRequired[str | None]
    image_url: NotRequired[ImageUrl | None]
    image_base64: NotRequired[str | None]
    file_url: NotRequired[str | None]
    file_base64: NotRequired[str | None]
    file_name: NotRequired[str | None]


class FunctionCall(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: str
    function: FunctionCall
    provider_specific_fields: NotRequired[Json | None]


class Message(TypedDict):
    role: str
    content: NotRequired[str | list[ContentElement] | None]
    name: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall] | None]
    tool_call_id: NotRequired[str | None]
    resp_message_id: NotRequired[str | None]
    provider_specific_fields: NotRequired[Json | None]


class MessageChunk(TypedDict):
    role: str
    content: NotRequired[str | list[ContentElement] | None]
    all_content: NotRequired[str | None]
    name: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall] | None]
    tool_call_id: NotRequired[str | None]
    resp_message_id: NotRequired[str | None]
    is_final: NotRequired[bool]
    msg_sequence: NotRequired[int | None]
    provider_specific_fields: NotRequired[Json | None]


class LlmTokenUsage(TypedDict):
    prompt_tokens: NotRequired[int | None]
    completion_tokens: NotRequired[int | None]
    total_tokens: NotRequired[int | None]


class LlmTool(TypedDict):
    """A tool that is offered to a model. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: Json
    human_desc: NotRequired[str]


# --- interactions ---


class InteractionOption(TypedDict):
    value: str
    label: str
    description: NotRequired[str | None]


class InteractionField(TypedDict):
    id: str
    label: str
    type: InteractionFieldType
    required: NotRequired[bool]
    options: NotRequired[list[InteractionOption]]
    placeholder: NotRequired[str | None]
    default: NotRequired[Any]


class InteractionAction(TypedDict):
    id: str
    label: str
    style: NotRequired[Literal["default", "primary", "danger"]]


# `await` is a keyword of Python, so this type is written as a call.
InteractionRequest = TypedDict(
    "InteractionRequest",
    {
        "interaction_id": str,
        "title": str,
        "fallback_text": str,
        "kind": "NotRequired[Literal['form', 'confirmation', 'choice']]",
        "description": "NotRequired[str | None]",
        "fields": "NotRequired[list[InteractionField]]",
        "actions": "NotRequired[list[InteractionAction]]",
        "expires_at": "NotRequired[int | None]",
        "await": "NotRequired[bool]",
    },
)


class InteractionSubmission(TypedDict):
    interaction_id: str
    action_id: NotRequired[str | None]
    values: NotRequired[Json]
    submitted_at: NotRequired[int | None]


class Interaction(TypedDict):
    """A question of a run, as the gateway stores it. `id` is the gateway's id of it."""

    id: str
    run_id: str
    sequence: int
    status: str
    request: InteractionRequest
    asked_at: int
    expires_at: int
    submitted_at: NotRequired[int | None]
    submitted_event_id: NotRequired[str | None]
    submitted_run_id: NotRequired[str | None]


class ActorContext(TypedDict):
    actor_type: str
    actor_id: NotRequired[str | None]
    actor_name: NotRequired[str | None]
    metadata: NotRequired[Json]


class AwaitedInteraction(TypedDict):
    status: Literal["open", "submitted", "expired", "cancelled"]
    action_id: NotRequired[str | None]
    values: NotRequired[Json | None]
    actor: NotRequired[ActorContext | None]


# --- events that clients post ---


class InputAttachment(TypedDict):
    """A file of the event. `artifact_id` names an upload; read it as `id`."""

    artifact_id: NotRequired[str]
    id: NotRequired[str | None]
    ref: NotRequired[str | None]
    type: NotRequired[str | None]
    mime_type: NotRequired[str | None]
    size: NotRequired[int | None]
    name: NotRequired[str | None]
    source: NotRequired[str | None]
    url: NotRequired[str | None]
    path: NotRequired[str | None]
    content: NotRequired[str | None]


class AgentInput(TypedDict):
    text: NotRequired[str | None]
    contents: NotRequired[list[ContentElement]]
    attachments: NotRequired[list[InputAttachment]]
    interaction: NotRequired[InteractionSubmission | None]


class EventConversation(TypedDict):
    conversation_id: NotRequired[str | None]
    thread_id: NotRequired[str | None]
    launcher_type: NotRequired[str | None]
    launcher_id: NotRequired[str | None]


class SubjectContext(TypedDict):
    subject_type: str
    subject_id: NotRequired[str | None]
    data: NotRequired[Json]


class EventEnvelope(TypedDict):
    """Body of `POST /v1/events`."""

    event_type: str
    event_id: NotRequired[str | None]
    source: NotRequired[str]
    source_event_type: NotRequired[str | None]
    event_time: NotRequired[int | None]
    bot_id: NotRequired[str | None]
    conversation: NotRequired[EventConversation | None]
    actor: NotRequired[ActorContext | None]
    subject: NotRequired[SubjectContext | None]
    input: NotRequired[AgentInput | None]
    delivery: NotRequired[Json]
    data: NotRequired[Json]
    raw: NotRequired[Any]
    raw_ref: NotRequired[Json | None]


class EventAccepted(TypedDict):
    """Result of a posted event.

    If no agent takes the event, `run_id` is None, `reason` is `no_agent`, and `hint` is a sentence with cause and next
    step. `steered` is true if a live run absorbed the event: follow that run after `last_sequence`.
    """

    event_id: str
    run_id: NotRequired[str | None]
    run_url: NotRequired[str | None]
    status: NotRequired[RunStatus | None]
    steered: NotRequired[bool]
    last_sequence: NotRequired[int | None]
    reason: NotRequired[str | None]
    hint: NotRequired[str | None]


class AgentRun(TypedDict):
    """Run of an event. Times (`…_at`) are in epoch seconds, `duration_ms` is in milliseconds.

    `output` is the last message. `error` is `{code, message, retryable}` of a run that did not complete. `usage` has
    token counts. `metadata` counts the results that deviated from the protocol. `retry_of` is the ended run that this
    run repeats. `input_preview` has at most 200 characters.
    """

    run_id: str
    event_id: str
    agent_id: str
    runner_id: str
    workspace_id: str
    status: RunStatus
    created_at: int
    dispatch_attempts: int
    last_sequence: int
    metadata: Json
    agent_name: NotRequired[str | None]
    input_preview: NotRequired[str | None]
    duration_ms: NotRequired[int | None]
    status_reason: NotRequired[str | None]
    parent_run_id: NotRequired[str | None]
    retry_of: NotRequired[str | None]
    conversation_id: NotRequired[str | None]
    thread_id: NotRequired[str | None]
    bot_id: NotRequired[str | None]
    started_at: NotRequired[int | None]
    finished_at: NotRequired[int | None]
    deadline_at: NotRequired[int | None]
    cancel_requested_at: NotRequired[int | None]
    output: NotRequired[Json | None]
    error: NotRequired[Json | None]
    usage: NotRequired[Json | None]
    cost: NotRequired[Json | None]


class ArtifactMetadata(TypedDict):
    artifact_id: str
    name: str
    mime_type: str
    size: int
    sha256: str
    origin: str
    run_id: NotRequired[str | None]
    event_id: NotRequired[str | None]
    created_at: NotRequired[int | None]
    expires_at: NotRequired[int | None]


class ConversationSummary(TypedDict):
    """A conversation and its newest event."""

    conversation_id: str
    event_count: int
    message_count: int
    is_busy: bool
    last_event_id: str
    last_event_at: int
    bot_id: NotRequired[str | None]
    thread_id: NotRequired[str | None]
    input_preview: NotRequired[str | None]


class TranscriptItem(TypedDict):
    """A message of a conversation's history."""

    transcript_id: str
    event_id: str
    role: str
    item_type: str
    seq: int
    created_at: int
    metadata: Json
    attachment_refs: list[Json]
    run_id: NotRequired[str | None]
    content: NotRequired[str | None]
    content_json: NotRequired[Json | None]
    cursor: NotRequired[str | None]
