"""The request of a run, as `openapi/runner.json` defines it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ..events import RunEvent
from ..types import ActorContext, AgentInput, Json, StateScope, SubjectContext

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired


class Permissions(TypedDict, total=False):
    """Operations that a runner asks for. An agent of it is granted at most these."""

    models: list[Literal["invoke", "stream", "rerank", "count_tokens"]]
    tools: list[Literal["detail", "call"]]
    knowledge_bases: list[Literal["list", "retrieve"]]
    history: list[Literal["page", "search", "workspace"]]
    events: list[Literal["get", "page"]]
    artifacts: list[Literal["metadata", "read", "create"]]
    storage: list[Literal["plugin", "workspace", "binding"]]
    state: list[Literal["conversation", "actor", "subject", "runner", "binding"]]
    files: list[Literal["config", "knowledge"]]
    interactions: list[Literal["request"]]
    agents: list[Literal["call"]]
    schedules: list[Literal["wake"]]
    platform_api: list[str]


class Capabilities(TypedDict, total=False):
    """Capabilities of a runner, for display. They grant nothing."""

    streaming: bool
    tool_calling: bool
    knowledge_retrieval: bool
    multimodal_input: bool
    event_context: bool
    platform_api: bool
    interrupt: bool
    stateful_session: bool
    self_managed_context: bool
    skill_authoring: bool
    steering: bool
    interactions: bool
    resumable: bool


class AgentEventContext(TypedDict):
    """Event of the run, without its large parts. `event_time` is in epoch seconds."""

    event_id: str
    event_type: str
    source: str
    event_time: NotRequired[int | None]
    source_event_type: NotRequired[str | None]
    raw_ref: NotRequired[Json | None]
    data: NotRequired[Json]


class ConversationContext(TypedDict, total=False):
    """Conversation of the event."""

    conversation_id: str | None
    thread_id: str | None
    launcher_type: str | None
    launcher_id: str | None
    sender_id: str | None
    bot_id: str | None
    workspace_id: str | None
    session_id: str | None


class ModelResource(TypedDict):
    """Model of the grant, and the operations granted on it."""

    model_id: str
    model_type: NotRequired[str | None]
    provider: NotRequired[str | None]
    operations: NotRequired[list[str]]
    # Empty or absent: unknown.
    input_modalities: NotRequired[list[Literal["text", "image"]]]


class ToolResource(TypedDict):
    """Tool of the grant. `parameters` is a JSON Schema. Treat an unknown `effect` as a write."""

    tool_name: str
    tool_type: NotRequired[str | None]
    description: NotRequired[str | None]
    operations: NotRequired[list[str]]
    parameters: NotRequired[Json | None]
    source: NotRequired[str | None]
    effect: NotRequired[Literal["read", "write", "irreversible"] | None]
    idempotent: NotRequired[bool | None]
    effect_source: NotRequired[Literal["operator", "server"] | None]
    approval: NotRequired[Literal["ask"] | None]


class KnowledgeBaseResource(TypedDict):
    """Knowledge base of the grant."""

    kb_id: str
    kb_name: NotRequired[str | None]
    kb_type: NotRequired[str | None]
    operations: NotRequired[list[str]]


class AgentResources(TypedDict, total=False):
    """Resources that the run may use."""

    models: list[ModelResource]
    tools: list[ToolResource]
    knowledge_bases: list[KnowledgeBaseResource]
    skills: list[Json]
    agents: list[Json]
    files: list[Json]
    storage: Json
    platform_capabilities: Json


class AvailableApis(TypedDict, total=False):
    """Host API calls that the run may make."""

    prompt_get: bool
    history_page: bool
    history_search: bool
    event_get: bool
    event_page: bool
    artifact_metadata: bool
    artifact_read: bool
    state: bool
    storage: bool
    steering_pull: bool
    run_get: bool
    run_list: bool
    run_events_page: bool
    run_cancel: bool
    run_append_result: bool
    run_finalize: bool
    child_runs: bool


class ContextAccess(TypedDict, total=False):
    """Parts of the context that were left out, and the calls that return them."""

    conversation_id: str | None
    thread_id: str | None
    latest_cursor: str | None
    event_seq: int | None
    transcript_seq: int | None
    has_history_before: bool
    inline_policy: Json
    available_apis: AvailableApis


class RunResume(TypedDict):
    """Checkpoint of a run whose earlier runner process was lost. `after`: last ledger event that stays; 0 for none."""

    checkpoint: Any
    after: int


class RetryOrigin(TypedDict):
    """Results of an ended run. The run begins after them. They have no `message.delta`."""

    run_id: str
    after: int
    results: list[RunEvent]


# `from` is a keyword of Python, so the class syntax cannot declare it.
_RuntimeOrigin = TypedDict("_RuntimeOrigin", {"from": "RetryOrigin | None"}, total=False)


class AgentRuntimeContext(_RuntimeOrigin, total=False):
    """Execution data of the run. `deadline_at` is in epoch seconds; `metadata.limits` has the limits of the run.

    `from` has the results after which a retry begins: see `RunContext.origin`.
    """

    host: str
    protocol_version: str
    langbot_version: str | None
    trace_id: str | None
    deadline_at: float | None
    locale: str | None
    timezone: str | None
    static_refs: Json
    resume: RunResume | None
    metadata: Json


class AgentRunContext(TypedDict):
    """Context of a run: event, grant, state, configuration."""

    run_id: str
    trigger: Json
    event: AgentEventContext
    input: AgentInput
    delivery: Json
    resources: AgentResources
    runtime: AgentRuntimeContext
    conversation: NotRequired[ConversationContext | None]
    actor: NotRequired[ActorContext | None]
    subject: NotRequired[SubjectContext | None]
    context: NotRequired[ContextAccess]
    state: NotRequired[dict[StateScope, Json]]
    variables: NotRequired[Json]
    config: NotRequired[Json]
    adapter: NotRequired[Json | None]
    metadata: NotRequired[Json]


class HostAccess(TypedDict):
    """Address and token of the host API. `token_expires_at` is in epoch seconds."""

    base_url: str
    token: str
    token_expires_at: int


class AgentRunRequest(TypedDict):
    """Body of `POST /runs`, the request that starts a run."""

    runner_id: str
    runner_name: str
    context: AgentRunContext
    host: HostAccess


class ResumeRequest(TypedDict):
    """Body of `POST /runs/{run_id}/resume`. `after` is the sequence of the last result that the gateway has stored."""

    run_id: str
    runner_id: str
    attempt: int
    after: NotRequired[int | None]
    host: HostAccess


class AgentRunnerManifest(TypedDict):
    """Manifest of a runner: identity, capabilities, permissions, configuration form."""

    id: str
    name: str
    label: dict[str, str]
    protocol_version: NotRequired[str]
    description: NotRequired[dict[str, str] | None]
    capabilities: NotRequired[Capabilities]
    permissions: NotRequired[Permissions]
    config_schema: NotRequired[list[Json]]
    resume_within_seconds: NotRequired[int | None]
    component_kind: NotRequired[str | None]
    usages: NotRequired[list[str]]
    supported_event_patterns: NotRequired[list[str]]
    context: NotRequired[Json]
    metadata: NotRequired[Json]


class RetrievalResultEntry(TypedDict):
    """Passage of a knowledge base. `content` has the form of a message's content; a smaller `distance` is closer."""

    id: str
    content: list[Any]
    metadata: Json
    distance: float
    score: NotRequired[float | None]
