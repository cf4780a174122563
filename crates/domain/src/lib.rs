//! Pure decisions: values in, values out. No waiting, no clock, no I/O.

pub mod actor_token;
pub mod authorization;
pub mod binding;
pub mod event;

pub mod admission;
pub mod agent;
pub mod api_key;
pub mod approval;
pub mod artifact;
pub mod change;
pub mod child_run;
pub mod discovery;
pub mod form;
pub mod generation;
pub mod interaction;
pub mod locale;
pub mod manifest;
mod own_limits;
pub mod skill;
pub mod state;

pub mod breaker;
pub mod budget;
pub mod context;
pub mod ledger;
pub mod normalize;
pub mod platform_action;
pub mod redaction;
pub mod retry;
pub mod run;
pub mod schedule;
pub mod signing_key;
pub mod source;
pub mod tool_call;
pub mod tool_name;
pub mod tool_policy;
pub mod trace;
pub mod webhook;

pub mod canonical;
pub mod history;
pub mod json_repair;
pub mod json_text;
pub mod knowledge;
pub mod large_text;
pub mod nearest;
pub mod text_index;
pub mod usage;
