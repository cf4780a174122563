//! Our types with their counterparts in LangBot's SDK.

use domain::interaction::{check_request, check_submission};
use protocol::context as c;
use protocol::error::AgentApiError;
use protocol::event::AgentEventRecord;
use protocol::history::{HistorySearchResult, TranscriptItem};
use protocol::host_api::{SteeringInputItem, SteeringPullResult};
use protocol::interaction as i;
use protocol::knowledge::RetrievalResultEntry;
use protocol::manifest as m;
use protocol::message as p;
use protocol::model::{LlmInvokeResult, LlmStreamEvent, LlmTool};
use protocol::resources as r;
use protocol::result as o;
use protocol::run::{AgentRun, AgentRunEvent, Page};
use protocol::runtime::AgentRuntime;
use protocol::stats::{RunStats, RunnerStats, RuntimeStats};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

/// One of our types.
pub struct Ours {
    /// The class in the SDK.
    pub theirs: &'static str,
    /// The name of our type.
    pub name: String,
    /// Its OpenAPI schema.
    pub schema: Value,
    /// Referenced schemas by name.
    pub components: Vec<(String, Value)>,
    /// Returns true if a document parses and is within the limits.
    pub takes: fn(&Value) -> bool,
    /// Parses a document and serializes it again.
    pub rewrite: fn(&str) -> Result<String, serde_json::Error>,
}

pub fn entities() -> Vec<Ours> {
    let all = [
        manifests_and_contexts(),
        granted_and_answered(),
        records(),
        exchanged(),
    ];
    all.into_iter().flatten().collect()
}

/// Manifests and parts of a context.
fn manifests_and_contexts() -> Vec<Ours> {
    vec![
        of::<m::FormItem>("DynamicFormItemSchema"),
        of::<m::Capabilities>("RunnerCapabilities"),
        of::<m::Permissions>("RunnerPermissions"),
        of::<m::AgentRunnerManifest>("RunnerManifest"),
        of::<c::AdapterContext>("AdapterContext"),
        of::<c::AgentRunContext>("RunnerContext"),
        of::<c::AgentTrigger>("AgentTrigger"),
        of::<c::RawEventRef>("RawEventRef"),
        of::<c::ConversationContext>("ConversationContext"),
        of::<c::AgentEventContext>("AgentEventContext"),
        of::<c::ActorContext>("ActorContext"),
        of::<c::SubjectContext>("SubjectContext"),
        of::<c::InputAttachment>("InputAttachment"),
        of::<c::AgentInput>("AgentInput"),
        of::<c::DeliveryContext>("DeliveryContext"),
        of::<c::InlineContextPolicy>("InlineContextPolicy"),
        of::<c::AvailableApis>("ContextAPICapabilities"),
        of::<c::ContextAccess>("ContextAccess"),
        of::<c::AgentRunState>("AgentRunState"),
        of::<c::AgentRuntimeContext>("AgentRuntimeContext"),
    ]
}

/// Resources, interactions and results.
fn granted_and_answered() -> Vec<Ours> {
    vec![
        of::<r::ModelResource>("ModelResource"),
        of::<r::ToolResource>("ToolResource"),
        of::<r::KnowledgeBaseResource>("KnowledgeBaseResource"),
        of::<r::SkillResource>("SkillResource"),
        of::<r::StorageResource>("StorageResource"),
        of::<r::AgentResources>("AgentResources"),
        of::<i::InteractionOption>("InteractionOption"),
        of::<i::InteractionField>("InteractionField"),
        of::<i::InteractionAction>("InteractionAction"),
        of_checked::<i::InteractionRequest>("InteractionRequest", |document| {
            // The examples expire at second 7.
            read(document).is_some_and(|request| check_request(&request, Some(0)).is_empty())
        }),
        of_checked::<i::InteractionSubmission>("InteractionSubmission", |document| {
            read(document).is_some_and(|submission| check_submission(&submission).is_empty())
        }),
        of::<i::InteractionDeliveryCapabilities>("InteractionDeliveryCapabilities"),
        of::<o::ProcessorLogPayload>("ProcessorLogPayload"),
        of::<o::MessageDeltaPayload>("MessageDeltaPayload"),
        of::<o::MessageCompletedPayload>("MessageCompletedPayload"),
        of::<o::ToolCallStartedPayload>("ToolCallStartedPayload"),
        of::<o::ToolCallCompletedPayload>("ToolCallCompletedPayload"),
        of::<o::StateUpdatedPayload>("StateUpdatedPayload"),
        of::<o::RunCompletedPayload>("RunCompletedPayload"),
        of::<o::RunFailedPayload>("RunFailedPayload"),
        of::<o::ActionRequestedPayload>("ActionRequestedPayload"),
        of::<o::AgentRunResult>("RunnerResult"),
    ]
}

/// Transcript, event log, ledger and statistics.
fn records() -> Vec<Ours> {
    vec![
        of::<TranscriptItem>("TranscriptItem"),
        of::<Page<TranscriptItem>>("HistoryPage"),
        of::<HistorySearchResult>("HistorySearchResult"),
        of::<AgentEventRecord>("AgentEventRecord"),
        of::<Page<AgentEventRecord>>("EventPage"),
        of::<AgentRun>("AgentRun"),
        of::<AgentRunEvent>("AgentRunEvent"),
        of::<Page<AgentRun>>("RunPage"),
        of::<Page<AgentRunEvent>>("RunEventPage"),
        of::<AgentRuntime>("AgentRuntime"),
        of::<Page<AgentRuntime>>("RuntimePage"),
        of::<RunStats>("RunStats"),
        of::<RuntimeStats>("RuntimeStats"),
        of::<RunnerStats>("RunnerStats"),
        of::<Page<RunnerStats>>("RunnerStatsPage"),
        of::<SteeringInputItem>("SteeringInputItem"),
        of::<SteeringPullResult>("SteeringPullResult"),
        of::<AgentApiError>("AgentAPIError"),
    ]
}

/// Messages of models and knowledge bases.
fn exchanged() -> Vec<Ours> {
    vec![
        of::<p::FunctionCall>("FunctionCall"),
        of::<p::ToolCall>("ToolCall"),
        of::<p::ToolCall>("ToolCallChunk"),
        of::<p::ImageUrl>("ImageURLContentObject"),
        of::<p::ContentElement>("ContentElement"),
        of::<p::Message>("Message"),
        of::<p::MessageChunk>("MessageChunk"),
        of::<p::LlmTokenUsage>("LLMTokenUsage"),
        of::<LlmInvokeResult>("LLMInvokeResult"),
        of::<LlmStreamEvent>("LLMStreamEvent"),
        of::<LlmTool>("LLMTool"),
        of::<RetrievalResultEntry>("RetrievalResultEntry"),
    ]
}

fn of<T: ToSchema + Serialize + DeserializeOwned>(theirs: &'static str) -> Ours {
    of_checked::<T>(theirs, |document| read::<T>(document).is_some())
}

fn of_checked<T: ToSchema + Serialize + DeserializeOwned>(
    theirs: &'static str,
    takes: fn(&Value) -> bool,
) -> Ours {
    let mut components: Vec<(String, RefOr<Schema>)> = Vec::new();
    T::schemas(&mut components);
    let components = components.into_iter();
    Ours {
        theirs,
        name: T::name().into_owned(),
        schema: json!(T::schema()),
        components: components
            .map(|(name, schema)| (name, json!(schema)))
            .collect(),
        takes,
        rewrite: |text| serde_json::to_string(&serde_json::from_str::<T>(text)?),
    }
}

fn read<T: DeserializeOwned>(document: &Value) -> Option<T> {
    serde_json::from_str(&document.to_string()).ok()
}
