//! The transcript: the only text from the runtime to the model.

mod build;
mod render;
mod replay;

use serde::{Deserialize, Serialize};

use crate::graph::GraphStatus;

pub use build::{expansion_turn, notice, protocol_turn};
pub use render::{clean, instruction, one_line, render, render_from};
pub use replay::{Replay, replay};

/// One turn of the transcript; stored, so that later runs show it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptTurn {
    User {
        text: String,
        attachments: Vec<Attachment>,
    },
    Answer {
        text: String,
    },
    /// A notice of the runtime, shown once.
    Notice(Notice),
    /// A declaration with its observations.
    Protocol(ProtocolTurn),
}

/// An attachment of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub name: String,
    pub kind: String,
    pub size: u64,
    /// Reference to its content.
    pub reference: String,
}

/// A sentence with numbered lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub sentence: String,
    /// Code, place and text of each line.
    pub lines: Vec<(String, String, String)>,
}

/// A declaration, each call next to its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProtocolTurn {
    pub run_id: String,
    /// Reason of the calls.
    pub purpose: String,
    /// Completed, blocked or failed.
    pub status: GraphStatus,
    /// Reference to the stored declaration.
    pub declaration: Option<String>,
    /// The earlier graph that it continues.
    pub continues: Option<String>,
    pub calls: Vec<CallTurn>,
    pub next: Option<String>,
    /// Tokens of the declaration; decides how long it is shown exactly. Not printed.
    pub tokens: usize,
    /// True if the calls are shown, false for only their results.
    pub is_exact: bool,
}

/// A call and its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallTurn {
    pub id: String,
    /// Label of its executor's class.
    pub kind: String,
    /// Name of its executor.
    pub target: String,
    /// The work, in a line.
    pub does: String,
    pub after: Vec<String>,
    pub when: Option<String>,
    /// Bound arguments, as JSON; empty without arguments.
    pub arguments: String,
    pub status: String,
    /// Code and line of a failure, a block or a wait.
    pub reason: Option<(String, String)>,
    /// References to artifacts.
    pub artifacts: Vec<String>,
    /// Form and tokens of the shown result.
    pub shown: Option<String>,
    pub text: String,
    /// Hash of the work, to find repetitions. Not printed.
    pub work: String,
}
