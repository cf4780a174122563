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

# JSON object.
Json = dict[str, Any]
# Owner of a state entry, status of a run (the last four are terminal), task result, value type of a form field.
StateScope = Literal["conversation", "actor", "subject", "runner", "binding"]
RunStatus = Literal["created", "queued", "claimed", "running", "completed", "failed", "cancelled", "timeout"]
RunOutcome = Literal["ok", "not_done", "need_input"]
InteractionFieldType = Literal["text", "textarea", "select", "multiselect", "number", "boolean", "file"]


# --- messages ---


class ImageUrl(TypedDict):
    """Address of an image: `https:`, `data:` or `artifact:ID`."""

    url: str


class ContentElement(TypedDict):
    """Part of a message: `type` is `text`, `image_url`, `image_base64`, `file_url`, `file_base64` or free."""

    type: str
    text: NotRequired[str | None]
    image_url: NotRequired[ImageUrl | None]
    image_base64: NotRequired[str | None]
    file_url: NotRequired[str | None]
    file_base64: NotRequired[str | None]
    file_name: NotRequired[str | None]


class FunctionCall(TypedDict):
    """Name of a tool and its arguments, a JSON object as text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """Tool call of a model. Send `provider_specific_fields` back unchanged with the results."""

    id: str
    type: str
    function: FunctionCall
    provider_specific_fields: NotRequired[Json | None]


class Message(TypedDict):
    """Message of a conversation. `role` is `assistant`, `user`, `system` or `tool`."""

    role: str
    content: NotRequired[str | list[ContentElement] | None]
    name: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall] | None]
    tool_call_id: NotRequired[str | None]
    resp_message_id: NotRequired[str | None]
    provider_specific_fields: NotRequired[Json | None]


class MessageChunk(TypedDict):
    """Fragment of a message. `content` is an increment; `all_content` is the complete text so far, if it is set."""

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
    """Token counts of model calls. An absent count is unknown, not 0."""

    prompt_tokens: NotRequired[int | None]
    completion_tokens: NotRequired[int | None]
    total_tokens: NotRequired[int | None]


class LlmTool(TypedDict):
    """Tool that is offered to a model. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: Json
    human_desc: NotRequired[str]


class CountOfStatus(TypedDict):
    """Number of runs of one status. Not `exact`: a lower bound."""

    status: RunStatus
    count: int
    exact: bool


class CountsByStatus(TypedDict):
    """Counts of runs. `since`: creation of the oldest counted run, if older runs were not counted."""

    items: list[CountOfStatus]
    since: NotRequired[int | None]


# --- usage ---

UsageGroupBy = Literal["agent", "model", "tool", "knowledge_base"]


class TokensByPrice(TypedDict):
    """Disjoint token counts. The first four sum to the prompt, the last two to the completion."""

    input: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int
    output: int
    reasoning: int


class UsedByRuns(TypedDict):
    """Sums of calls. A run counts on the day of its first call. `cost` is in the currency of the configured prices."""

    runs: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    tokens: TokensByPrice
    cost: float
    seconds: float


class UsedOnDay(UsedByRuns):
    """Sums of one day (UTC), which begins at `day`, in epoch seconds."""

    day: int


class UsageGroup(TypedDict):
    """Use of one agent, model, tool or knowledge base. Without an id: that of all others."""

    id: NotRequired[str | None]
    name: NotRequired[str | None]
    total: UsedByRuns
    days: list[UsedOnDay]


UsageReport = TypedDict(
    "UsageReport",
    {
        "from": int,
        "to": int,
        "group_by": UsageGroupBy,
        "total": UsedByRuns,
        "groups": list[UsageGroup],
    },
)
UsageReport.__doc__ = "Use between `from` and `to`, in epoch seconds. The groups with the highest cost come first."


# --- interactions ---


class InteractionOption(TypedDict):
    """Option of a `select` or `multiselect` field."""

    value: str
    label: str
    description: NotRequired[str | None]


class InteractionField(TypedDict):
    """Form field of a question. `id` is the key of its value in the answer."""

    id: str
    label: str
    type: InteractionFieldType
    required: NotRequired[bool]
    options: NotRequired[list[InteractionOption]]
    placeholder: NotRequired[str | None]
    default: NotRequired[Any]


class InteractionAction(TypedDict):
    """Button of a question."""

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
        "kind": "NotRequired[Literal['form', 'confirmation', 'choice', 'budget']]",
        "description": "NotRequired[str | None]",
        "fields": "NotRequired[list[InteractionField]]",
        "actions": "NotRequired[list[InteractionAction]]",
        "expires_at": "NotRequired[int | None]",
        "await": "NotRequired[bool]",
    },
)
InteractionRequest.__doc__ = """Question of a runner. `expires_at` is in epoch seconds, by default in 30 minutes.

`fallback_text` is the question as plain text. With `await` the run waits for the answer.
"""


class InteractionSubmission(TypedDict):
    """Answer to a question: `values` by field id. `submitted_at` is in epoch seconds."""

    interaction_id: str
    action_id: NotRequired[str | None]
    values: NotRequired[Json]
    submitted_at: NotRequired[int | None]


class Principal(TypedDict):
    """Credential or component that made a change or a decision.

    `kind` is `api_key`, `link`, `event`, `run`, `config` or `gateway`. Keys of role client see no `name`.
    """

    kind: str
    id: NotRequired[str | None]
    name: NotRequired[str | None]


class InteractionAnswer(TypedDict):
    """Accepted answer to a question. Texts of fields with a secret name are `***`."""

    action_id: NotRequired[str | None]
    values: Json
    by: Principal


class Interaction(TypedDict):
    """Question of a run, as the gateway stores it. Times are in epoch seconds.

    `id` is the gateway's id, `request.interaction_id` the runner's. `status` is `open`, `submitted`, `expired` or
    `cancelled`.
    """

    id: str
    run_id: str
    sequence: int
    status: str
    request: InteractionRequest
    asked_at: int
    expires_at: int
    submitted_at: NotRequired[int | None]
    answer: NotRequired[InteractionAnswer | None]
    submitted_event_id: NotRequired[str | None]
    submitted_run_id: NotRequired[str | None]


class ActorCredential(TypedDict):
    """Token of an actor, for tools that are called on its behalf."""

    token: str
    type: NotRequired[Literal["access_token", "id_token", "jwt"]]


class ActorContext(TypedDict):
    """Sender of an event."""

    actor_type: str
    actor_id: NotRequired[str | None]
    actor_name: NotRequired[str | None]
    locale: NotRequired[str | None]
    timezone: NotRequired[str | None]
    metadata: NotRequired[Json]
    credential: NotRequired[ActorCredential | None]


class AwaitedInteraction(TypedDict):
    """State of a question that its run waits for. All states except `open` are final."""

    status: Literal["open", "submitted", "expired", "cancelled"]
    action_id: NotRequired[str | None]
    values: NotRequired[Json | None]
    actor: NotRequired[ActorContext | None]


class PlatformAction(TypedDict):
    """Act of the chat platform. All statuses except `awaiting_approval`, `open` and `claimed` are final."""

    id: str
    run_id: str
    agent_id: str
    action: str
    target: Json
    payload: Json
    status: Literal["awaiting_approval", "open", "claimed", "done", "failed", "declined", "expired", "cancelled"]
    created_at: int
    expires_at: int
    sequence: NotRequired[int]
    interaction_id: NotRequired[str]
    claimed_at: NotRequired[int]
    finished_at: NotRequired[int]
    output: NotRequired[Json]
    error: NotRequired[Json]
    event: NotRequired[Json]


class ClaimedAction(TypedDict):
    """Claimed platform action. Its result names the `claim_token`, which is secret."""

    action: PlatformAction
    claim_token: str


class AgentWake(TypedDict):
    """Wake of an agent. Times are epoch seconds. All statuses except `pending` are final."""

    key: str
    at: int
    status: Literal["pending", "triggered", "skipped", "failed", "cancelled"]
    event_id: str
    created_at: int


# --- events that clients post ---


class InputAttachment(TypedDict):
    """File of an event. `artifact_id` of a posted event names an upload; a runner reads it as `id`. `size`: bytes."""

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
    """Input of an event: text, parts, files."""

    text: NotRequired[str | None]
    contents: NotRequired[list[ContentElement]]
    attachments: NotRequired[list[InputAttachment]]
    interaction: NotRequired[InteractionSubmission | None]


class EventConversation(TypedDict):
    """Conversation of an event. Without `conversation_id` the event belongs to none."""

    conversation_id: NotRequired[str | None]
    thread_id: NotRequired[str | None]
    launcher_type: NotRequired[str | None]
    launcher_id: NotRequired[str | None]


class SubjectContext(TypedDict):
    """Object that an event is about."""

    subject_type: str
    subject_id: NotRequired[str | None]
    data: NotRequired[Json]


class EventEnvelope(TypedDict):
    """Event to post. Only `event_type` is required; `message.received` also needs `input`.

    `event_id` makes a repeated post harmless: the gateway returns the first result. `event_time` is in epoch seconds.
    """

    event_type: str
    event_id: NotRequired[str | None]
    source: NotRequired[str]
    source_event_type: NotRequired[str | None]
    event_time: NotRequired[int | None]
    locale: NotRequired[str | None]
    timezone: NotRequired[str | None]
    bot_id: NotRequired[str | None]
    pipeline_id: NotRequired[str | None]
    conversation: NotRequired[EventConversation | None]
    actor: NotRequired[ActorContext | None]
    subject: NotRequired[SubjectContext | None]
    input: NotRequired[AgentInput | None]
    delivery: NotRequired[Json]
    data: NotRequired[Json]
    raw: NotRequired[Any]
    raw_ref: NotRequired[Json | None]


class RunStreamLink(TypedDict):
    """Link to the stream of one run, for a browser: `new EventSource(url)`.

    The URL has a secret. It opens one stream, before `expires_at` in epoch seconds.
    """

    url: str
    expires_at: int


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
    run repeats, after its result `retry_from` if that is set; `retried_as` is the run that repeats this one.
    `input_preview` has at most 200 characters.
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
    retry_from: NotRequired[int | None]
    retried_as: NotRequired[str | None]
    conversation_id: NotRequired[str | None]
    thread_id: NotRequired[str | None]
    bot_id: NotRequired[str | None]
    started_at: NotRequired[int | None]
    finished_at: NotRequired[int | None]
    deadline_at: NotRequired[int | None]
    cancel_requested_at: NotRequired[int | None]
    cancelled_by: NotRequired[Principal | None]
    output: NotRequired[Json | None]
    error: NotRequired[Json | None]
    usage: NotRequired[Json | None]
    cost: NotRequired[Json | None]


class ArtifactMetadata(TypedDict):
    """File of the gateway. `size` is in bytes, `sha256` in hex; times are in epoch seconds."""

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
    """Conversation and its newest event. `last_event_at` is in epoch seconds.

    `is_busy` is true while one of its runs is live. `input_preview` has at most 200 characters.
    """

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
    """Message of a conversation's history. `created_at` is in epoch seconds, `seq` counts from 1.

    `content` has at most 4,000 characters; `content_json` has the complete content.
    """

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
