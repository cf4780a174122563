//! HTTP of the gateway's APIs: server, authentication, request bodies and queries, error body, limits, and the state
//! that handlers share.

pub mod auth;
pub mod error;
pub mod http_server;
pub mod json;
pub mod query;
pub mod state;

pub mod artifact_content;
pub mod artifact_upload;
pub mod auth_rate_limit;
pub mod binary;
pub mod calls_in_progress;
pub mod catalog_work;
pub mod discard_body;
pub mod event_pages;
pub mod host_allowlist;
pub mod key_revocation;
pub mod knowledge;
pub mod mcp;
pub mod memory_budget;
pub mod metrics_page;
pub mod model_memory;
pub mod platform_action;
pub mod recheck;
pub mod response_memory;
pub mod response_store;
pub mod run_pages;
pub mod sign_in;
pub mod skill_registrar;
pub mod stream;
pub mod stream_limit;
pub mod transcript;
pub mod view;
