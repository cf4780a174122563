//! Connectors: agents on other platforms as runners.
//!
//! A [`mapping::PlatformMapping`] is one run on one platform: requests from the turn, results from events. The run loop
//! uploads files, sends the message, stores the conversation's id, starts over once if the platform lost it, asks a
//! person, and completes or fails the run. A [`session::MachineSession`] frames response bytes for the loop and guards
//! its end. All are pure. The [`driver`] does the I/O: it handles all outputs in their order, and the last call, question
//! or request for history decides the next input. The [`service`] offers them as runners.
//!
//! # Add a platform
//!
//! 1. `src/NAME_agent.rs` holds `PLATFORM` and `impl PlatformMapping`. Next to it, in `src/NAME_agent/`: `config.rs`
//!    reads the keys with [`upstream::config::ConfigReader`]; `request.rs` makes requests; `events.rs` handles one event
//!    of the stream; `form.json` lists the form's items.
//! 2. `lib.rs` gets one line `mod NAME_agent;`, and [`catalogue::PLATFORMS`] gets one row.
//! 3. `tests/transcripts/NAME-agent/` gets one transcript per rule; `tests/transcripts.rs` describes their form and
//!    checks them complete, cut at every byte, and ended at every byte.
//!
//! # Rules for mappings
//!
//! - Text goes to the [`upstream::answer::PlatformAnswer`]: `append` for pieces, `snapshot` for texts that repeat, `replace` for
//!   moderation, `think` for reasoning.
//! - Only the platform's end mark is [`mapping::MappingStep::Complete`]; `finish` adds the rest of the answer.
//! - A failure is an `Err`; errors within a stream are [`ConnectorFailure::reported`]. The session redacts secrets.
//! - `is_lost` recognizes failures about a lost conversation. [`run::ConnectorRun::learn`] stores a new id.
//! - `file` gives the reference of a file, or its upload. A file that the platform cannot take is
//!   [`ConnectorFailure::upload`].
//! - Interrupts go to an [`upstream::question_queue::QuestionQueue`]; `resume` gets the answers to all of them.
//! - [`run::ConnectorRun::task`] is set while the platform has work to stop.
//! - Keep-alives are pings: `is_ping`. Everything else resets the idle timer.
//!
//! [`ConnectorFailure::reported`]: upstream::failure::ConnectorFailure::reported
//! [`ConnectorFailure::upload`]: upstream::failure::ConnectorFailure::upload

pub mod mapping; // start here: the interface of a platform

pub mod machine;
pub mod run;
mod run_loop;

pub mod request;
pub mod session;
pub mod turn;

pub mod catalogue;
pub mod platform;
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
