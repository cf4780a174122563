//! Tests of the store on both databases: one topic per file, shared code in `support`.
#![expect(clippy::unwrap_used, reason = "a failing assertion reports the fault")]

mod support;

mod awaited;
mod beginning;
mod bounds;
mod budget_questions;
mod budgets;
mod changes;
mod crossing;
mod discovery;
mod foreign;
mod interleavings;
mod keys;
mod knowledge;
mod pauses;
mod plans;
mod schedules;
mod schema;
mod search;
mod shared;
mod store;
mod stream_links;
mod together;
mod usage_days;
mod webhooks;
mod writer;
