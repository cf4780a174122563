//! Wire contract between clients, gateway and runners: data only, no I/O.
//!
//! Output is exact. Input is tolerant where it grants nothing. Entities and field names are those of the
//! `AgentRunner` Protocol v1.

pub mod id;

pub mod event;
pub mod pipeline;

pub mod context;
pub mod interaction;
pub mod manifest;
pub mod message;
pub mod request;
pub mod resources;
pub mod result;
pub mod retry_origin;

pub mod admin;
pub mod api_key;
pub mod approval;
pub mod budget;
pub mod change;
pub mod child_run;
pub mod discovery;
pub mod error;
pub mod feed;
pub mod history;
pub mod hook;
pub mod host_api;
pub mod job;
pub mod knowledge;
pub mod limiter;
pub mod lists;
pub mod model;
pub mod pause;
pub mod platform_action;
pub mod principal;
pub mod raw;
pub mod run;
pub mod runtime;
pub mod schedule;
pub mod skill;
pub mod source;
pub mod stats;
pub mod tool;
pub mod webhook;
pub mod workspace;

pub mod peer_text;
pub mod sse;
pub mod thinking;

mod lenient;

/// Major version of the protocol that this crate implements.
pub const PROTOCOL_VERSION: &str = "1";

/// A JSON object with arbitrary members.
pub type JsonObject = serde_json::Map<String, serde_json::Value>;
