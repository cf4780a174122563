//! Accepted differences with reasons, see `docs/protocol.md` (Differences). A difference that no longer exists must be
//! removed here.

/// SDK classes without a counterpart.
pub const NOT_OURS: &[(&str, &[&str])] = &[(
    "there is no sandbox to lend: no route for boxes, and `available_apis` lists none",
    &[
        "BoxAcquireRequest",
        "BoxBinding",
        "BoxFile",
        "BoxSession",
        "BoxStatus",
    ],
)];

/// Fields of ours that accept more than their schema, because only the gateway writes them.
pub const LOOSER: &[(&str, &str)] = &[("TranscriptItem", "content_json")];

pub const DECIDED: &[(&str, &[&str])] = &[
    (
        "an action request without a grant is telemetry and is kept as it came",
        &[
            "ActionRequestedPayload.payload is any for us, {any} for them",
            "ActionRequestedPayload.target is any for us, {any} for them",
        ],
    ),
    (
        "a policy may ask before calls of a tool, and the runner sees which",
        &["ToolResource.approval is only ours"],
    ),
    (
        "a platform action is opened once, and not for ever",
        &[
            "ActionRequestedPayload.idempotency_key is only ours",
            "ActionRequestedPayload.timeout_seconds is only ours",
        ],
    ),
    (
        "unknown fields of what runners send are kept in the ledger and ignored: a newer runner may \
         say more than we know",
        &[
            "ActionRequestedPayload.an unknown key: taken only by us",
            "InteractionAction.an unknown key: taken only by us",
            "InteractionField.an unknown key: taken only by us",
            "InteractionOption.an unknown key: taken only by us",
            "InteractionRequest.an unknown key: taken only by us",
            "MessageCompletedPayload.an unknown key: taken only by us",
            "MessageDeltaPayload.an unknown key: taken only by us",
            "ProcessorLogPayload.an unknown key: taken only by us",
            "RunCompletedPayload.an unknown key: taken only by us",
            "RunFailedPayload.an unknown key: taken only by us",
            "StateUpdatedPayload.an unknown key: taken only by us",
            "ToolCallCompletedPayload.an unknown key: taken only by us",
            "ToolCallStartedPayload.an unknown key: taken only by us",
        ],
    ),
    (
        "model output may gain fields, and older runners must accept them",
        &[
            "LLMInvokeResult.an unknown key: taken only by us",
            "LLMStreamEvent.an unknown key: taken only by us",
        ],
    ),
    (
        "an unknown capability or permission is dropped with a warning, and grants nothing",
        &[
            "RunnerCapabilities.an unknown key: taken only by us",
            "RunnerManifest.an unknown key: taken only by us",
            "RunnerPermissions.an unknown key: taken only by us",
        ],
    ),
    (
        "these are also the client's: what it misspells in an envelope is a 400",
        &[
            "ActorContext.an unknown key: taken only by them",
            "AgentInput.an unknown key: taken only by them",
            "DeliveryContext.an unknown key: taken only by them",
            "SubjectContext.an unknown key: taken only by them",
        ],
    ),
    (
        "only in a posted event: no context has it",
        &["ActorContext.credential is only ours"],
    ),
    (
        "the union of all sources of the protocol; peers ignore what they do not know",
        &[
            "ActorContext.locale is only ours",
            "ActorContext.timezone is only ours",
            "AgentResources.files is only ours",
            "AgentRunState.binding is only ours",
            "AgentRuntimeContext.host is only ours",
            "AgentRuntimeContext.locale is only ours",
            "AgentRuntimeContext.protocol_version is only ours",
            "AgentRuntimeContext.resume is only ours",
            "AgentRuntimeContext.static_refs is only ours",
            "AgentRuntimeContext.timezone is only ours",
            "ContextAPICapabilities.artifact_metadata is only ours",
            "ContextAPICapabilities.artifact_read is only ours",
            "ModelResource.input_modalities is only ours",
            "RunnerPermissions.history is [enum(page,search,workspace)] for us, [enum(page,search)] for them",
            "StorageResource.binding_storage is only ours",
        ],
    ),
    (
        "who serves a tool and what a call of it does, for runners that ask somebody before they write; \
         peers ignore what they do not know",
        &[
            "ToolResource.effect is only ours",
            "ToolResource.effect_source is only ours",
            "ToolResource.idempotent is only ours",
            "ToolResource.source is only ours",
        ],
    ),
    (
        "lists show a run by its agent, its input and its duration; left out where they are not known",
        &[
            "AgentRun.agent_name is only ours",
            "AgentRun.duration_ms is only ours",
            "AgentRun.input_preview is only ours",
        ],
    ),
    (
        "a run may start runs of other agents; left out where there is none, and peers ignore what they do \
         not know",
        &[
            "AgentResources.agents is only ours",
            "AgentRun.parent_run_id is only ours",
            "ContextAPICapabilities.child_runs is only ours",
            "RunCompletedPayload.outcome is only ours",
            "RunnerPermissions.agents is only ours",
        ],
    ),
    (
        "a retry repeats the run of an event; peers ignore what they do not know",
        &[
            "AgentRun.retried_as is only ours",
            "AgentRun.retry_from is only ours",
            "AgentRun.retry_of is only ours",
            "AgentRuntimeContext.from is only ours",
        ],
    ),
    (
        "the key of a client, for its operator; left out in the host API",
        &["AgentRun.posted_by is only ours"],
    ),
    (
        "the cause of a cancel, for its operator; left out in the host API",
        &["AgentRun.cancelled_by is only ours"],
    ),
    (
        "a live run may wait for the answer; peers ignore what they do not know",
        &["InteractionRequest.await is only ours"],
    ),
    (
        "the gateway asks about budgets by a kind of its own, which it refuses from runners",
        &[
            "InteractionRequest.kind is enum(budget,choice,confirmation,form) for us, enum(choice,confirmation,form) for them",
        ],
    ),
    (
        "which run wrote a skill, for runners that trust it less than the operator's; peers ignore what \
         they do not know",
        &["SkillResource.registered is only ours"],
    ),
    (
        "the union again, in manifests: a runner declares them to a gateway, never to a LangBot host, which \
         would refuse them",
        &[
            "RunnerCapabilities.event_context is only ours",
            "RunnerCapabilities.platform_api is only ours",
            "RunnerCapabilities.self_managed_context is only ours",
            "RunnerCapabilities.resumable is only ours",
            "RunnerCapabilities.stateful_session is only ours",
            "RunnerManifest.context is only ours",
            "RunnerManifest.protocol_version is only ours",
            "RunnerManifest.resume_within_seconds is only ours",
            "RunnerPermissions.artifacts is only ours",
            "RunnerPermissions.files is only ours",
            "RunnerPermissions.platform_api is only ours",
            "RunnerPermissions.schedules is only ours",
            "RunnerPermissions.state is only ours",
            "RunnerPermissions.storage is [enum(binding,plugin,workspace)] for us, \
             [enum(plugin,workspace)] for them",
        ],
    ),
    (
        "five state scopes: a runner may keep state by agent, too",
        &[
            "StateUpdatedPayload.scope is enum(actor,binding,conversation,runner,subject) for us, \
             enum(actor,conversation,runner,subject) for them",
        ],
    ),
    (
        "there is no such route here; absent reads as false",
        &[
            "ContextAPICapabilities.box is only theirs",
            "ContextAPICapabilities.reply_stream is only theirs",
        ],
    ),
    (
        "a page is alike everywhere: cursors, and a count where one is kept",
        &[
            "RunPage.total_count: null: taken only by us",
            "RunnerStatsPage.next_cursor is only ours",
            "RunnerStatsPage.prev_cursor is only ours",
            "RunnerStatsPage.total_count: null: taken only by us",
            "RuntimePage.total_count: null: taken only by us",
        ],
    ),
    (
        "the gateway always sends it, so readers may rely on it",
        &[
            "AgentEventRecord.created_at: left out: taken only by them",
            "AgentEventRecord.created_at: null: taken only by them",
            "AgentRun.agent_id: left out: taken only by them",
            "AgentRun.agent_id: null: taken only by them",
            "AgentRun.created_at: left out: taken only by them",
            "AgentRun.created_at: null: taken only by them",
            "AgentRun.dispatch_attempts: left out: taken only by them",
            "AgentRun.dispatch_attempts: null: taken only by them",
            "AgentRun.event_id: left out: taken only by them",
            "AgentRun.event_id: null: taken only by them",
            "AgentRun.metadata: left out: taken only by them",
            "AgentRun.runner_id: left out: taken only by them",
            "AgentRun.runner_id: null: taken only by them",
            "AgentRun.workspace_id: left out: taken only by them",
            "AgentRun.workspace_id: null: taken only by them",
            "AgentRunEvent.created_at: left out: taken only by them",
            "AgentRunEvent.created_at: null: taken only by them",
            "AgentRunEvent.source: left out: taken only by them",
            "AgentRunEvent.source: null: taken only by them",
            "EventPage.has_more: left out: taken only by them",
            "EventPage.items: left out: taken only by them",
            "HistoryPage.has_more: left out: taken only by them",
            "HistoryPage.items: left out: taken only by them",
            "HistorySearchResult.items: left out: taken only by them",
            "HistorySearchResult.total_count: left out: taken only by them",
            "HistorySearchResult.total_count: null: taken only by them",
            "RunEventPage.has_more: left out: taken only by them",
            "RunEventPage.items: left out: taken only by them",
            "RunPage.has_more: left out: taken only by them",
            "RunPage.items: left out: taken only by them",
            "RunnerStatsPage.has_more: left out: taken only by them",
            "RunnerStatsPage.items: left out: taken only by them",
            "RuntimePage.has_more: left out: taken only by them",
            "RuntimePage.items: left out: taken only by them",
            "SteeringInputItem.claimed_at: left out: taken only by them",
            "SteeringInputItem.claimed_at: null: taken only by them",
            "SteeringPullResult.items: left out: taken only by them",
            "TranscriptItem.attachment_refs: left out: taken only by them",
            "TranscriptItem.created_at: left out: taken only by them",
            "TranscriptItem.created_at: null: taken only by them",
            "TranscriptItem.item_type: left out: taken only by them",
            "TranscriptItem.metadata: left out: taken only by them",
            "TranscriptItem.seq: left out: taken only by them",
            "TranscriptItem.seq: null: taken only by them",
        ],
    ),
    (
        "a run of this gateway has more members: its output, its error, and the end of its ledger",
        &[
            "AgentRun.error is only ours",
            "AgentRun.last_sequence is only ours",
            "AgentRun.output is only ours",
            "TranscriptItem.run_id is only ours",
        ],
    ),
    (
        "a failure has its text in `message` or in `error`: the sources of the protocol disagree, so \
         either is taken and both are emitted",
        &[
            "RunFailedPayload.error: left out: taken only by us",
            "RunFailedPayload.error: null: taken only by us",
            "RunFailedPayload.message is only ours",
        ],
    ),
    (
        "telemetry is tolerant: levels and numbers for display refuse no result",
        &[
            "MessageChunk.msg_sequence: null: taken only by us",
            "ProcessorLogPayload.level is string for us, enum(debug,error,info,warning) for them",
            "ProcessorLogPayload.level: null: taken only by us",
        ],
    ),
    (
        "the other sources of the protocol know neither usages nor component kinds",
        &[
            "RunnerManifest.component_kind is string for us, enum(Runner) for them",
            "RunnerManifest.component_kind: null: taken only by us",
            "RunnerManifest.usages has the limits {} for us, {\"least items\":1} for them",
            "RunnerManifest.usages: a list: taken only by us",
            "RunnerManifest.usages: left out: taken only by us",
        ],
    ),
    (
        "ids that the gateway makes are UUIDs, and its runs have the eight statuses and no other",
        &[
            "AgentRun.agent_id is uuid for us, string for them",
            "AgentRun.run_id is uuid for us, string for them",
            "AgentRun.status is \
             enum(cancelled,claimed,completed,created,failed,queued,running,timeout) for us, string \
             for them",
            "AgentRunEvent.run_id is uuid for us, string for them",
        ],
    ),
    (
        "one parser of runner ids; a manifest without one is rejected with the reason",
        &[
            "AgentRun.runner_id is pattern for us, string for them",
            "RunnerManifest.id is pattern for us, string for them",
        ],
    ),
    (
        "a model needs no text for people",
        &["LLMTool.human_desc: left out: taken only by us"],
    ),
];
