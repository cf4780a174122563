//! The client API: events in, runs and history out.

pub(super) mod answer_page;
pub(super) mod artifacts;
pub(super) mod audit;
pub(super) mod batch;
pub mod body_files;
pub(super) mod conversations;
pub(super) mod event_batch;
pub(super) mod event_body;
pub(super) mod event_log;
pub(super) mod events;
pub(super) mod feed;
pub(super) mod history;
pub mod interactions;
pub(super) mod own_key;
pub(super) mod pipeline;
pub(super) mod platform_actions;
pub(super) mod received;
pub(super) mod retry;
pub(super) mod run_filter;
pub(super) mod run_stream;
pub(super) mod runs;
pub(super) mod sessions;
pub(super) mod stream_link;
pub(super) mod usage;
pub(super) mod usage_days;
