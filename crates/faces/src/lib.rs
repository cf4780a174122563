//! Faces: the protocols of other systems over runs (`docs/faces.md`).
//!
//! A face translates ingest, stream, cancel and interactions. Its answers are functions of the ledger, so a client
//! resumes them on any replica.

mod a2a;
mod ag_ui;
mod agent_runs;
mod agents;
mod answer;
mod answer_text;
mod body;
mod follow;
mod frame_position;
mod input;
mod ledger;
mod mcp;
mod message_text;
mod openai;
mod questions;
mod start;

use utoipa_axum::router::OpenApiRouter;

use web::state::ApiState;

/// All routes under `/faces`.
pub fn routes() -> OpenApiRouter<ApiState> {
    openai::routes()
        .merge(a2a::routes())
        .merge(ag_ui::routes())
        .merge(mcp::routes())
}
