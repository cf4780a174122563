//! Accepted differences with reasons. A difference that no longer exists must be removed here.

/// SDK classes without a counterpart.
pub const NOT_OURS: &[(&str, &[&str])] = &[(
    "there is no sandbox to lend: no route for boxes, and `available_apis` says so",
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
        "an action request is telemetry and is kept as it came, but for interactions",
        &[
            "ActionRequestedPayload.payload is any for us, {any} for them",
            "ActionRequestedPayload.target is any for us, {any} for them",
        ],
    ),
    (
        "unknown fields of what runners send are kept in the ledger and ignored: a newer runner may \
         say more than we know",
        &[
            "ActionRequestedPayload.an unknown key: taken by us alone",
            "InteractionAction.an unknown key: taken by us alone",
            "InteractionField.an unknown key: taken by us alone",
            "InteractionOption.an unknown key: taken by us alone",
            "InteractionRequest.an unknown key: taken by us alone",
            "MessageCompletedPayload.an unknown key: taken by us alone",
            "MessageDeltaPayload.an unknown key: taken by us alone",
            "ProcessorLogPayload.an unknown key: taken by us alone",
            "RunCompletedPayload.an unknown key: taken by us alone",
            "RunFailedPayload.an unknown key: taken by us alone",
            "StateUpdatedPayload.an unknown key: taken by us alone",
            "ToolCallCompletedPayload.an unknown key: taken by us alone",
            "ToolCallStartedPayload.an unknown key: taken by us alone",
        ],
    ),
    (
        "model output may gain fields, and older runners must accept them",
        &[
            "LLMInvokeResult.an unknown key: taken by us alone",
            "LLMStreamEvent.an unknown key: taken by us alone",
        ],
    ),
    (
        "an unknown capability or permission is dropped with a warning, and grants nothing",
        &[
            "RunnerCapabilities.an unknown key: taken by us alone",
            "RunnerManifest.an unknown key: taken by us alone",
            "RunnerPermissions.an unknown key: taken by us alone",
        ],
    ),
    (
        "these are also the client's: what it misspells in an envelope is a 400",
        &[
            "ActorContext.an unknown key: taken by them alone",
            "AgentInput.an unknown key: taken by them alone",
            "DeliveryContext.an unknown key: taken by them alone",
            "SubjectContext.an unknown key: taken by them alone",
        ],
    ),
    (
        "the union of all sources of the protocol; peers ignore what they do not know",
        &[
            "ActorContext.locale is ours alone",
            "ActorContext.timezone is ours alone",
            "AgentResources.files is ours alone",
            "AgentRunState.binding is ours alone",
            "AgentRuntimeContext.host is ours alone",
            "AgentRuntimeContext.locale is ours alone",
            "AgentRuntimeContext.protocol_version is ours alone",
            "AgentRuntimeContext.static_refs is ours alone",
            "AgentRuntimeContext.timezone is ours alone",
            "ContextAPICapabilities.artifact_metadata is ours alone",
            "ContextAPICapabilities.artifact_read is ours alone",
            "ModelResource.input_modalities is ours alone",
            "RunnerPermissions.history is [enum(page,search,workspace)] for us, [enum(page,search)] for them",
            "StorageResource.binding_storage is ours alone",
        ],
    ),
    (
        "who serves a tool and what a call of it does, for runners that ask somebody before they write; \
         peers ignore what they do not know",
        &[
            "ToolResource.effect is ours alone",
            "ToolResource.effect_source is ours alone",
            "ToolResource.idempotent is ours alone",
            "ToolResource.source is ours alone",
        ],
    ),
    (
        "lists show a run by its agent, its input and its duration; left out where they are not known",
        &[
            "AgentRun.agent_name is ours alone",
            "AgentRun.duration_ms is ours alone",
            "AgentRun.input_preview is ours alone",
        ],
    ),
    (
        "a run may start runs of other agents; left out where there is none, and peers ignore what they do \
         not know",
        &[
            "AgentResources.agents is ours alone",
            "AgentRun.parent_run_id is ours alone",
            "ContextAPICapabilities.child_runs is ours alone",
            "RunCompletedPayload.outcome is ours alone",
            "RunnerPermissions.agents is ours alone",
        ],
    ),
    (
        "a retry repeats the run of an event; peers ignore what they do not know",
        &["AgentRun.retry_of is ours alone"],
    ),
    (
        "the key of a client, for its operator; left out in the host API",
        &["AgentRun.posted_by is ours alone"],
    ),
    (
        "a live run may wait for the answer; peers ignore what they do not know",
        &["InteractionRequest.await is ours alone"],
    ),
    (
        "which run wrote a skill, for runners that trust it less than the operator's; peers ignore what \
         they do not know",
        &["SkillResource.registered is ours alone"],
    ),
    (
        "the union again, in manifests: a runner says so to a gateway, never to a LangBot host, which \
         would refuse them",
        &[
            "RunnerCapabilities.event_context is ours alone",
            "RunnerCapabilities.platform_api is ours alone",
            "RunnerCapabilities.self_managed_context is ours alone",
            "RunnerCapabilities.stateful_session is ours alone",
            "RunnerManifest.context is ours alone",
            "RunnerManifest.protocol_version is ours alone",
            "RunnerPermissions.artifacts is ours alone",
            "RunnerPermissions.files is ours alone",
            "RunnerPermissions.platform_api is ours alone",
            "RunnerPermissions.state is ours alone",
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
            "ContextAPICapabilities.box is theirs alone",
            "ContextAPICapabilities.reply_stream is theirs alone",
        ],
    ),
    (
        "a page is alike everywhere: cursors, and a count where one is kept",
        &[
            "RunPage.total_count: null: taken by us alone",
            "RunnerStatsPage.next_cursor is ours alone",
            "RunnerStatsPage.prev_cursor is ours alone",
            "RunnerStatsPage.total_count: null: taken by us alone",
            "RuntimePage.total_count: null: taken by us alone",
        ],
    ),
    (
        "the gateway always sends it, so readers may rely on it",
        &[
            "AgentEventRecord.created_at: left out: taken by them alone",
            "AgentEventRecord.created_at: null: taken by them alone",
            "AgentRun.agent_id: left out: taken by them alone",
            "AgentRun.agent_id: null: taken by them alone",
            "AgentRun.created_at: left out: taken by them alone",
            "AgentRun.created_at: null: taken by them alone",
            "AgentRun.dispatch_attempts: left out: taken by them alone",
            "AgentRun.dispatch_attempts: null: taken by them alone",
            "AgentRun.event_id: left out: taken by them alone",
            "AgentRun.event_id: null: taken by them alone",
            "AgentRun.metadata: left out: taken by them alone",
            "AgentRun.runner_id: left out: taken by them alone",
            "AgentRun.runner_id: null: taken by them alone",
            "AgentRun.workspace_id: left out: taken by them alone",
            "AgentRun.workspace_id: null: taken by them alone",
            "AgentRunEvent.created_at: left out: taken by them alone",
            "AgentRunEvent.created_at: null: taken by them alone",
            "AgentRunEvent.source: left out: taken by them alone",
            "AgentRunEvent.source: null: taken by them alone",
            "EventPage.has_more: left out: taken by them alone",
            "EventPage.items: left out: taken by them alone",
            "HistoryPage.has_more: left out: taken by them alone",
            "HistoryPage.items: left out: taken by them alone",
            "HistorySearchResult.items: left out: taken by them alone",
            "HistorySearchResult.total_count: left out: taken by them alone",
            "HistorySearchResult.total_count: null: taken by them alone",
            "RunEventPage.has_more: left out: taken by them alone",
            "RunEventPage.items: left out: taken by them alone",
            "RunPage.has_more: left out: taken by them alone",
            "RunPage.items: left out: taken by them alone",
            "RunnerStatsPage.has_more: left out: taken by them alone",
            "RunnerStatsPage.items: left out: taken by them alone",
            "RuntimePage.has_more: left out: taken by them alone",
            "RuntimePage.items: left out: taken by them alone",
            "SteeringInputItem.claimed_at: left out: taken by them alone",
            "SteeringInputItem.claimed_at: null: taken by them alone",
            "SteeringPullResult.items: left out: taken by them alone",
            "TranscriptItem.attachment_refs: left out: taken by them alone",
            "TranscriptItem.created_at: left out: taken by them alone",
            "TranscriptItem.created_at: null: taken by them alone",
            "TranscriptItem.item_type: left out: taken by them alone",
            "TranscriptItem.metadata: left out: taken by them alone",
            "TranscriptItem.seq: left out: taken by them alone",
            "TranscriptItem.seq: null: taken by them alone",
        ],
    ),
    (
        "a run of this gateway tells more: what it said, why it failed, where its ledger ends",
        &[
            "AgentRun.error is ours alone",
            "AgentRun.last_sequence is ours alone",
            "AgentRun.output is ours alone",
            "TranscriptItem.run_id is ours alone",
        ],
    ),
    (
        "a failure has its text in `message` or in `error`: the sources of the protocol disagree, so \
         either is taken and both are emitted",
        &[
            "RunFailedPayload.error: left out: taken by us alone",
            "RunFailedPayload.error: null: taken by us alone",
            "RunFailedPayload.message is ours alone",
        ],
    ),
    (
        "telemetry is tolerant: levels and numbers for display refuse no result",
        &[
            "MessageChunk.msg_sequence: null: taken by us alone",
            "ProcessorLogPayload.level is string for us, enum(debug,error,info,warning) for them",
            "ProcessorLogPayload.level: null: taken by us alone",
        ],
    ),
    (
        "the other sources of the protocol know neither usages nor component kinds",
        &[
            "RunnerManifest.component_kind is string for us, enum(Runner) for them",
            "RunnerManifest.component_kind: null: taken by us alone",
            "RunnerManifest.usages has the limits {} for us, {\"least items\":1} for them",
            "RunnerManifest.usages: a list: taken by us alone",
            "RunnerManifest.usages: left out: taken by us alone",
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
        &["LLMTool.human_desc: left out: taken by us alone"],
    ),
];
