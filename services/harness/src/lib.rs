//! The harness runner: coding agents as runners, on runner-kit and the public host API alone.

pub mod sandbox;
