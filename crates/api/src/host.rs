//! The host API: the routes that a runner calls with its run token (`docs/runners/host-api.md`).

pub(super) mod artifacts;
pub(super) mod child_runs;
pub(super) mod events;
pub(super) mod history;
pub(super) mod interactions;
pub(super) mod knowledge;
pub(super) mod mcp;
pub(super) mod messages;
pub(super) mod models;
pub(super) mod openai;
pub(super) mod prompt;
pub(super) mod responses;
pub(super) mod results;
pub(super) mod run;
pub(super) mod runs;
pub(super) mod state;
pub(super) mod steering;
pub(super) mod storage;
pub(super) mod tools;
