//! Tests of the crate through its public face.

mod adversarial;
mod codes;
mod declarations;
mod golden;
mod scheduler;
mod support;
