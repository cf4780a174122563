//! Tests of the crate through its public face.
#![expect(
    clippy::format_push_string,
    clippy::needless_pass_by_value,
    clippy::unnecessary_wraps,
    reason = "rows of tables are easiest to compare on one line"
)]

mod adversarial;
mod checklist;
mod codes;
mod declarations;
mod golden;
mod grammar;
mod properties;
mod records;
mod results;
mod scheduler;
mod states;
mod support;
mod transcripts;
mod words;
