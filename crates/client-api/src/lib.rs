//! The routes of API keys: the client API (events in, runs and history out) and the admin API.

mod admin;
pub mod client;
mod principals;

use domain::interaction::SUBMISSION_BYTES;
use domain::knowledge::MAX_DOCUMENT_BYTES;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use web::json::{BODY_BYTES, body_limit};
use web::state::ApiState;

/// Maximum bytes of a request to try a source: its largest body, escaped as a JSON text, and its headers.
const TRY_BYTES: usize = 3 * BODY_BYTES;

/// All routes of API keys, and those of sources.
pub fn routes() -> OpenApiRouter<ApiState> {
    client_routes().merge(admin_routes())
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
        .routes(routes!(admin::advice::advise_agent))
        .routes(routes!(admin::advice::check_policy))
        .routes(routes!(client::event_log::get_raw_payload))
        .routes(routes!(client::event_log::get_event))
        .routes(routes!(client::runs::list_runs))
        .routes(routes!(client::runs::count_runs))
        .routes(routes!(client::runs::get_run))
        .routes(routes!(client::runs::list_run_events))
        .routes(routes!(client::run_stream::stream_run_events))
        .routes(routes!(client::runs::list_run_rejections))
        .routes(routes!(client::runs::get_run_authorization))
        .routes(routes!(client::audit::list_run_audit))
        .routes(routes!(client::usage::get_run_usage))
        .routes(routes!(client::usage_days::report_usage))
        .routes(routes!(client::runs::cancel_run))
        .routes(routes!(client::batch::cancel_runs))
        .routes(routes!(client::batch::retry_runs))
        .routes(routes!(client::batch::list_jobs))
        .routes(routes!(client::batch::get_job))
        .routes(routes!(client::batch::cancel_job))
        .routes(routes!(client::conversations::list_conversations))
        .routes(routes!(client::retry::retry_run))
        .routes(routes!(client::stream_link::link_run_stream))
        .routes(routes!(client::stream_link::stream_by_link))
        .routes(routes!(client::feed::stream_workspace_feed))
        .routes(routes!(client::feed::list_feed_messages))
        .routes(routes!(client::own_key::get_own_key))
        .routes(routes!(client::sessions::get_sign_in))
        .routes(routes!(client::sessions::create_session))
        .routes(routes!(client::history::get_conversation_history))
        .routes(routes!(client::history::search_conversation_history))
        .merge(interaction_routes())
        .merge(platform_action_routes())
        .routes(routes!(
            client::received::receive_source_event,
            client::received::answer_source_check
        ))
        .routes(routes!(client::received::receive_secret_event))
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

fn platform_action_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(client::platform_actions::list_platform_actions))
        .routes(routes!(client::platform_actions::get_platform_action))
        .routes(routes!(client::platform_actions::claim_platform_action))
        .routes(routes!(client::platform_actions::report_action_result))
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
        .routes(routes!(admin::changes::restore_agent))
        .routes(routes!(admin::changes::list_changes))
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
        .merge(approval_routes())
        .merge(pause_routes())
        .merge(source_routes())
        .merge(webhook_routes())
        .merge(schedule_routes())
        .routes(routes!(admin::budgets::list_budgets))
        .routes(routes!(
            admin::budgets::get_budget,
            admin::budgets::put_budget,
            admin::budgets::delete_budget
        ))
        .routes(routes!(admin::catalog::list_models))
        .routes(routes!(admin::catalog::list_tools))
        .routes(routes!(admin::mcp_servers::list_mcp_servers))
        .routes(routes!(admin::model_providers::list_model_providers))
        .routes(routes!(admin::limits::list_limits))
        .routes(routes!(admin::catalog::list_knowledge_bases))
        .routes(routes!(admin::catalog::list_skills))
        .merge(knowledge_routes())
}

fn approval_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(
            admin::approvals::create_approval,
            admin::approvals::list_approvals
        ))
        .routes(routes!(admin::approvals::get_approval))
        .routes(routes!(admin::approvals::revoke_approval))
}

fn pause_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(admin::pauses::list_pauses))
        .routes(routes!(admin::pauses::pause_agent))
        .routes(routes!(admin::pauses::resume_agent))
        .routes(routes!(admin::pauses::pause_workspace))
        .routes(routes!(admin::pauses::resume_workspace))
        .routes(routes!(admin::pauses::pause_all))
        .routes(routes!(admin::pauses::resume_all))
}

fn webhook_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(
            admin::webhooks::create_webhook,
            admin::webhooks::list_webhooks
        ))
        .routes(routes!(
            admin::webhooks::get_webhook,
            admin::webhooks::update_webhook,
            admin::webhooks::delete_webhook
        ))
        .routes(routes!(admin::webhooks::rotate_webhook_secret))
        .routes(routes!(admin::webhooks::test_webhook))
        .routes(routes!(admin::webhooks::list_webhook_deliveries))
        .routes(routes!(admin::webhooks::redeliver_webhook))
        .routes(routes!(admin::webhooks::redeliver_webhook_message))
}

fn schedule_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(
            admin::schedules::create_schedule,
            admin::schedules::list_schedules
        ))
        .routes(routes!(
            admin::schedules::get_schedule,
            admin::schedules::update_schedule,
            admin::schedules::delete_schedule
        ))
        .routes(routes!(admin::schedules::pause_schedule))
        .routes(routes!(admin::schedules::resume_schedule))
        .routes(routes!(admin::schedules::run_schedule))
        .routes(routes!(admin::schedules::list_schedule_occurrences))
}

fn source_routes() -> OpenApiRouter<ApiState> {
    let tried = OpenApiRouter::new()
        .routes(routes!(admin::sources::try_source))
        .layer(body_limit(TRY_BYTES));
    tried
        .routes(routes!(
            admin::sources::create_source,
            admin::sources::list_sources
        ))
        .routes(routes!(
            admin::sources::get_source,
            admin::sources::delete_source
        ))
        .routes(routes!(admin::sources::rotate_source_secret))
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
