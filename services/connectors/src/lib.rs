//! Connectors: agents on other platforms as runners.
//!
//! A [`machine::Machine`] is one run on one platform: inputs in, outputs out. A [`session::MachineSession`] frames
//! response bytes for it and guards its end. Both are pure. The [`driver`] does the I/O: it handles all outputs in
//! their order, and the last call, question or request for history decides the next input. The [`service`] offers them
//! as runners.
//!
//! # Add a platform
//!
//! 1. `src/NAME_agent.rs` holds the machine: `PLATFORM`, `start`, and `impl Machine`. Next to it, in
//!    `src/NAME_agent/`: `config.rs` reads the keys with [`upstream::config::ConfigReader`]; `request.rs` makes
//!    requests, pure; `events.rs` handles one event of the stream; `form.json` lists the form's items.
//! 2. `lib.rs` gets one line `mod NAME_agent;`, and [`catalogue::PLATFORMS`] gets one row.
//! 3. `tests/transcripts/NAME-agent/` gets one transcript per rule; `tests/transcripts.rs` describes their form and
//!    checks them complete, cut at every byte, and ended at every byte.
//!
//! # Rules for machines
//!
//! - Text goes through [`upstream::answer::AnswerText`]: `append` for pieces, `snapshot` for texts that repeat,
//!   `replace` for moderation, `think` for reasoning. `complete` emits the one `message.completed`;
//!   `OutputQueue::finish` ends the run.
//! - Only the platform's end mark completes a run. [`machine::MachineInput::Ended`] without it is
//!   [`ConnectorFailure::ended_early`].
//! - A failure is an `Err`. Refusals and transport errors convert into it; errors within a stream are
//!   [`ConnectorFailure::reported`]. The session redacts secrets.
//! - The platform's conversation is an [`upstream::conversation::PlatformConversation`]: `learn` its id, and
//!   `start_over` once if the platform lost it.
//! - Files of the turn have bytes or an address. A file that the platform cannot take is [`ConnectorFailure::upload`].
//! - Keep-alives are pings: [`machine::Machine::is_ping`]. Everything else resets the idle timer.
//! - A machine names a next step after each [`machine::MachineInput::Ended`], refusal and answer; the session fails
//!   runs without one.
//!
//! [`ConnectorFailure::ended_early`]: upstream::failure::ConnectorFailure::ended_early
//! [`ConnectorFailure::reported`]: upstream::failure::ConnectorFailure::reported
//! [`ConnectorFailure::upload`]: upstream::failure::ConnectorFailure::upload

pub mod machine; // start here: the interface

pub mod request;
pub mod session;
pub mod turn;

pub mod catalogue;
pub mod upstream;

pub mod agent_file;
pub mod driver;
pub mod service;

mod a2a_agent;
mod ag_ui_agent;
mod coze_agent;
mod dashscope_agent;
mod dify_agent;
mod http_agent;
mod langflow_agent;
mod langgraph_agent;
mod n8n_agent;
mod openai_agent;
mod tbox_agent;
mod weknora_agent;
