//! Tests of the crate through its public face.

mod adversarial;
mod checklist;
mod codes;
mod declarations;
mod golden;
mod records;
mod results;
mod scheduler;
mod support;
mod transcripts;
