//! The OpenAPI documents `gateway.json` and `runner.json`.

pub(super) mod binary;

mod bounds;
mod defaults;
mod events;
mod examples;
mod general;
mod runner;
pub(super) mod selected;
pub(super) mod served;

use std::collections::BTreeMap;

use domain::interaction::SUBMISSION_BYTES;
use domain::knowledge::MAX_DOCUMENT_BYTES;
use protocol::result::{
    ActionRequestedPayload, ArtifactCreatedPayload, MessageCompletedPayload, MessageDeltaPayload,
    ProcessorLogPayload, RunCompletedPayload, RunFailedPayload, StateUpdatedPayload,
    ToolCallCompletedPayload, ToolCallStartedPayload,
};
use utoipa::openapi::schema::{ArrayItems, Schema};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{Modify, OpenApi};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::json::body_limit;
use crate::state::ApiState;
use crate::{admin, client, health, host};
use events::{TypedUnion, tolerate_telemetry};

/// All routes with their documentation.
pub(super) fn documented() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(GatewayDocument::openapi())
        .merge(client_routes())
        .merge(admin_routes())
        .merge(host_routes())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::jwks))
        .routes(routes!(served::openapi_json))
        .routes(routes!(served::runner_json))
}

fn client_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(
            client::events::post_event,
            client::event_log::list_events
        ))
        .routes(routes!(client::run_stream::stream_event))
        .routes(routes!(client::event_batch::post_event_batch))
        .routes(routes!(admin::dry_run::dry_run_event))
        .routes(routes!(admin::dry_run::dry_run_agent))
        .routes(routes!(client::event_log::get_raw_payload))
        .routes(routes!(client::event_log::get_event))
        .routes(routes!(client::runs::list_runs))
        .routes(routes!(client::runs::get_run))
        .routes(routes!(client::runs::list_run_events))
        .routes(routes!(client::run_stream::stream_run_events))
        .routes(routes!(client::runs::list_run_rejections))
        .routes(routes!(client::runs::get_run_authorization))
        .routes(routes!(client::audit::list_run_audit))
        .routes(routes!(client::usage::get_run_usage))
        .routes(routes!(client::runs::cancel_run))
        .routes(routes!(client::conversations::list_conversations))
        .routes(routes!(client::retry::retry_run))
        .routes(routes!(client::stream_link::link_run_stream))
        .routes(routes!(client::stream_link::stream_by_link))
        .routes(routes!(client::history::get_conversation_history))
        .routes(routes!(client::history::search_conversation_history))
        .merge(interaction_routes())
        .routes(routes!(client::artifacts::upload_artifact))
        .routes(routes!(
            client::artifacts::get_artifact,
            client::artifacts::delete_artifact
        ))
        .routes(routes!(client::artifacts::get_artifact_content))
        .routes(routes!(client::pipeline::post_pipeline_query))
        .routes(routes!(client::pipeline::stream_pipeline_query))
}

fn interaction_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(client::interactions::list_interactions))
        .routes(routes!(
            client::interactions::get_interaction,
            client::interactions::submit_interaction_by_link
        ))
        .routes(routes!(client::interactions::link_interaction))
        .routes(routes!(client::interactions::submit_interaction))
        .routes(routes!(
            client::answer_page::show_interaction_page,
            client::answer_page::submit_interaction_page
        ))
        .layer(body_limit(SUBMISSION_BYTES))
}

fn admin_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(
            admin::endpoints::register_runner_endpoint,
            admin::endpoints::list_runner_endpoints
        ))
        .routes(routes!(
            admin::endpoints::get_runner_endpoint,
            admin::endpoints::delete_runner_endpoint
        ))
        .routes(routes!(admin::endpoints::refresh_runner_endpoint))
        .routes(routes!(admin::health::list_endpoint_health))
        .routes(routes!(admin::runners::list_runners))
        .routes(routes!(
            admin::agents::create_agent,
            admin::agents::list_agents
        ))
        .routes(routes!(
            admin::agents::get_agent,
            admin::agents::update_agent,
            admin::agents::delete_agent
        ))
        .routes(routes!(admin::agent_skills::list_agent_skills))
        .routes(routes!(
            admin::agent_skills::get_agent_skill,
            admin::agent_skills::delete_agent_skill
        ))
        .routes(routes!(
            admin::api_keys::create_api_key,
            admin::api_keys::list_api_keys
        ))
        .routes(routes!(
            admin::api_keys::get_api_key,
            admin::api_keys::revoke_api_key
        ))
        .routes(routes!(
            admin::workspaces::create_workspace,
            admin::workspaces::list_workspaces
        ))
        .routes(routes!(admin::budgets::list_budgets))
        .routes(routes!(admin::catalog::list_models))
        .routes(routes!(admin::catalog::list_tools))
        .routes(routes!(admin::mcp_servers::list_mcp_servers))
        .routes(routes!(admin::model_providers::list_model_providers))
        .routes(routes!(admin::catalog::list_knowledge_bases))
        .routes(routes!(admin::catalog::list_skills))
        .merge(knowledge_routes())
}

fn knowledge_routes() -> OpenApiRouter<ApiState> {
    let documents = OpenApiRouter::new()
        .routes(routes!(
            admin::knowledge::get_document,
            admin::knowledge::put_document,
            admin::knowledge::delete_document
        ))
        .layer(body_limit(MAX_DOCUMENT_BYTES));
    documents
        .routes(routes!(admin::knowledge::list_documents))
        .routes(routes!(admin::knowledge::reindex_knowledge_base))
        .routes(routes!(admin::knowledge::search_knowledge_base))
}

fn host_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(host::run::get_own_context))
        .routes(routes!(host::prompt::get_prompt))
        .routes(routes!(host::run::get_own_run))
        .routes(routes!(host::runs::page_own_run_events))
        .routes(routes!(host::runs::cancel_own_run))
        .routes(routes!(host::runs::list_scope_runs))
        .routes(routes!(host::runs::get_scope_run))
        .routes(routes!(host::runs::page_scope_run_events))
        .routes(routes!(host::runs::cancel_scope_run))
        .routes(routes!(host::run::renew_token))
        .routes(routes!(host::state::list_state))
        .routes(routes!(
            host::state::get_state,
            host::state::put_state,
            host::state::delete_state
        ))
        .routes(routes!(host::history::page_history))
        .routes(routes!(host::history::search_history))
        .routes(routes!(host::events::page_own_events))
        .routes(routes!(host::events::get_own_event))
        .routes(routes!(host::storage::list_blobs))
        .routes(routes!(
            host::storage::get_blob,
            host::storage::put_blob,
            host::storage::delete_blob
        ))
        .routes(routes!(host::steering::pull_steering))
        .routes(routes!(host::interactions::await_interaction))
        .merge(host::child_runs::routes())
        .routes(routes!(host::tools::list_granted_tools))
        .routes(routes!(host::tools::get_tool))
        .routes(routes!(host::tools::call_tool))
        .merge(host::mcp::routes())
        .merge(host::mcp::shared::routes())
        .routes(routes!(host::knowledge::list_granted_knowledge_bases))
        .routes(routes!(host::knowledge::retrieve_knowledge))
        .routes(routes!(host::results::append_results))
        .routes(routes!(host::results::run_heartbeat))
        .routes(routes!(host::artifacts::create_artifact))
        .routes(routes!(host::artifacts::get_artifact_metadata))
        .routes(routes!(host::artifacts::read_artifact))
        .merge(model_routes())
}

fn model_routes() -> OpenApiRouter<ApiState> {
    // Conversations with images need a higher body limit.
    OpenApiRouter::new()
        .routes(routes!(host::models::list_granted_models))
        .routes(routes!(host::models::invoke_model))
        .routes(routes!(host::models::stream_model))
        .routes(routes!(host::models::count_model_tokens))
        .routes(routes!(host::models::reading::rerank_documents))
        .routes(routes!(host::models::reading::embed_texts))
        .merge(host::openai::routes())
        .merge(host::messages::routes())
        .merge(host::responses::routes())
        .layer(body_limit(host::models::memory_budget::BODY_BYTES))
}

/// Ledger events, as clients and runners read them.
const EVENTS: TypedUnion = TypedUnion {
    name: "AgentRunEvent",
    word: "Event",
    is_data_optional: false,
};

/// Results, as runners write them.
const RESULTS: TypedUnion = TypedUnion {
    name: "AgentRunResult",
    word: "Result",
    is_data_optional: true,
};

/// The document of the gateway, committed as `openapi/gateway.json`.
pub fn gateway_document() -> utoipa::openapi::OpenApi {
    let mut document = documented().into_openapi();
    // axum writes a parameter with slashes as `{*key}`, OpenAPI as `{key}`.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths
        .into_iter()
        .map(|(path, item)| (path.replace("{*", "{"), item))
        .collect();
    general::add_shared_errors(&mut document);
    examples::add_examples(&mut document);
    let components = document.components.get_or_insert_default();
    refer_to_items(&mut components.schemas);
    for union in [EVENTS, RESULTS] {
        union.replace(&mut components.schemas);
    }
    // After the unions, which read the required members of these payloads.
    tolerate_telemetry(&mut components.schemas);
    defaults::move_defaults_to_prose(&mut document);
    bounds::bound(&mut document);
    let components = document.components.get_or_insert_default();
    // Last, because bounds go into the named schemas, and a composed part is a copy.
    open_parts(&mut components.schemas);
    document
}

/// Replaces inlined item schemas of pages (`Page_AgentRun`) by references, so that generated clients have one
/// type for a run.
fn refer_to_items(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let of = name.split_once('_').map_or("", |(_, of)| of);
        let Some(item) = schemas.get(of).cloned() else {
            continue;
        };
        let Some(RefOr::T(Schema::Object(list))) = schemas.get_mut(&name) else {
            continue;
        };
        for property in list.properties.values_mut() {
            if let RefOr::T(Schema::Array(array)) = property
                && let ArrayItems::RefOrSchema(items) = &mut array.items
                && **items == item
            {
                **items = Ref::from_schema_name(of).into();
            }
        }
    }
}

/// Opens the parts of a composed schema: `additionalProperties: false` in one part would reject the fields of
/// the others.
fn open_parts(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    let closed: BTreeMap<String, Schema> = schemas
        .iter()
        .filter_map(|(name, schema)| match schema {
            RefOr::T(Schema::Object(object)) if object.additional_properties.is_some() => {
                let mut open = object.clone();
                open.additional_properties = None;
                let location = Ref::from_schema_name(name).ref_location;
                Some((location, Schema::Object(open)))
            }
            _ => None,
        })
        .collect();
    for schema in schemas.values_mut() {
        let RefOr::T(Schema::AllOf(composed)) = schema else {
            continue;
        };
        for part in &mut composed.items {
            if let RefOr::Ref(reference) = part
                && let Some(open) = closed.get(&reference.ref_location)
            {
                *part = open.clone().into();
            }
        }
    }
}

/// The document of a runner endpoint, committed as `openapi/runner.json`.
pub fn runner_document() -> utoipa::openapi::OpenApi {
    let mut document = runner::RunnerDocument::openapi();
    let components = document.components.get_or_insert_default();
    RESULTS.replace(&mut components.schemas);
    defaults::move_defaults_to_prose(&mut document);
    document
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Runnel gateway",
        description = "Events in, governed agent runs out, every result in the ledger.\n\n\
            Start with `POST /v1/events`. Times (`*_at`) are Unix seconds, durations (`*_ms`) are milliseconds. \
            Optional members may be absent, and responses may gain members: ignore unknown ones.\n\n\
            [The guide](/docs/guide) shows how a client streams, resumes and is generated. \
            [/openapi/runner.json](/openapi/runner.json) is what a runner serves.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "client", description = "Post events, read runs. API key of role client or admin."),
        (name = "admin", description = "Endpoints, runners, agents, catalog, API keys. API key of role admin."),
        (name = "owner", description = "Workspaces. API key of role owner."),
        (name = "host", description = "Calls by runners. Run token."),
        (name = "operation", description = "Health and documents. No credential."),
    ),
    // The members of the unions of events and results.
    components(schemas(
        MessageDeltaPayload,
        MessageCompletedPayload,
        ToolCallStartedPayload,
        ToolCallCompletedPayload,
        ArtifactCreatedPayload,
        StateUpdatedPayload,
        ActionRequestedPayload,
        ProcessorLogPayload,
        RunCompletedPayload,
        RunFailedPayload,
    )),
    modifiers(&SecuritySchemes),
)]
struct GatewayDocument;

struct SecuritySchemes;

impl Modify for SecuritySchemes {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = |format: &str, description: &str| {
            SecurityScheme::Http(
                HttpBuilder::new()
                    .scheme(HttpAuthScheme::Bearer)
                    .bearer_format(format)
                    .description(Some(description))
                    .build(),
            )
        };
        components.add_security_scheme("api_key", bearer("rnl", "An API key: `rnl_…`."));
        let run_token = bearer("run+jwt", "The token of a live run, from its run request.");
        components.add_security_scheme("run_token", run_token);
    }
}
