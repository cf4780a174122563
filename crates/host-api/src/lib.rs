//! The host API: the routes that a runner calls with its run token (`docs/runners/host-api.md`).

mod amendment;
mod artifacts;
mod call_approval;
pub mod checkpoint;
mod child_runs;
mod events;
pub mod gemini;
pub mod history;
mod hooks;
mod host_call;
mod interactions;
mod knowledge;
mod mcp;
pub mod messages;
pub mod models;
mod on_behalf_of;
pub mod openai;
mod platform_actions;
mod prompt;
mod recorded_call;
mod responses;
mod result_offload;
pub mod results;
mod run;
mod runs;
mod schedules;
pub mod state;
mod steering;
mod storage;
mod ticketed_call;
pub mod tools;
mod unknown_effect;
pub mod wire_face;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use web::json::body_limit;
use web::state::ApiState;

/// All routes under `/host/v1`.
pub fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(run::get_own_context))
        .routes(routes!(prompt::get_prompt))
        .routes(routes!(run::get_own_run))
        .routes(routes!(runs::page_own_run_events))
        .routes(routes!(runs::cancel_own_run))
        .routes(routes!(runs::list_scope_runs))
        .routes(routes!(runs::get_scope_run))
        .routes(routes!(runs::page_scope_run_events))
        .routes(routes!(runs::cancel_scope_run))
        .routes(routes!(run::renew_token))
        .routes(routes!(
            checkpoint::get_checkpoint,
            checkpoint::put_checkpoint
        ))
        .routes(routes!(state::list_state))
        .merge(entry_routes())
        .routes(routes!(state::document::get_state_body))
        .routes(routes!(history::page_history))
        .routes(routes!(history::search_history))
        .routes(routes!(events::page_own_events))
        .routes(routes!(events::get_own_event))
        .routes(routes!(storage::list_blobs))
        .routes(routes!(
            storage::get_blob,
            storage::put_blob,
            storage::delete_blob
        ))
        .routes(routes!(steering::pull_steering))
        .routes(routes!(interactions::await_interaction))
        .routes(routes!(platform_actions::request_platform_action))
        .routes(routes!(platform_actions::await_platform_action))
        .routes(routes!(schedules::request_wake))
        .routes(routes!(schedules::cancel_wake))
        .merge(child_runs::routes())
        .routes(routes!(tools::list_granted_tools))
        .routes(routes!(tools::get_tool))
        .routes(routes!(tools::call_tool))
        .merge(mcp::routes())
        .merge(mcp::shared::routes())
        .routes(routes!(knowledge::list_granted_knowledge_bases))
        .routes(routes!(knowledge::retrieve_knowledge))
        .routes(routes!(results::append_results))
        .routes(routes!(results::run_heartbeat))
        .routes(routes!(artifacts::create_artifact))
        .routes(routes!(artifacts::get_artifact_metadata))
        .routes(routes!(artifacts::read_artifact))
        .merge(model_routes())
}

fn entry_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(
            state::get_state,
            state::put_state,
            state::delete_state
        ))
        .layer(body_limit(state::document::WRITE_BYTES))
}

fn model_routes() -> OpenApiRouter<ApiState> {
    // Conversations with images need a higher body limit.
    OpenApiRouter::new()
        .routes(routes!(models::list_granted_models))
        .routes(routes!(models::invoke_model))
        .routes(routes!(models::stream_model))
        .routes(routes!(models::count_model_tokens))
        .routes(routes!(models::reading::rerank_documents))
        .routes(routes!(models::reading::embed_texts))
        .merge(openai::routes())
        .merge(messages::routes())
        .merge(responses::routes())
        .merge(gemini::routes())
        .layer(body_limit(web::model_memory::BODY_BYTES))
}
