//! Bounds of declarations. A limit that is exceeded refuses the declaration; nothing is cut silently.

use serde::{Deserialize, Serialize};

use crate::action::ExecutorKind;

/// Bounds that an operator may set. Sizes are bytes, times milliseconds, texts characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GraphLimits {
    /// Arguments of one carrier call.
    pub carrier_bytes: usize,
    /// Full text of an output that has a fenced declaration.
    pub output_bytes: usize,
    /// Nesting of the JSON of a declaration.
    pub json_depth: usize,
    /// Actions of one declaration by the carrier.
    pub carrier_actions: usize,
    /// Actions of one declaration in the full DSL.
    pub full_actions: usize,
    /// Instances that all `for_each` of a graph may create.
    pub instances: usize,
    /// Dependencies of one action.
    pub dependencies: usize,
    /// Longest path of the graph; above half of it a warning is given.
    pub graph_depth: usize,
    /// Markdown sections of one output.
    pub sections: usize,
    /// One Markdown section.
    pub section_bytes: usize,
    /// Title of a declaration or an action.
    pub title_chars: usize,
    /// Description of an action.
    pub description_chars: usize,
    /// Reason of an action.
    pub reason_chars: usize,
    /// Arguments of one action, canonical JSON.
    pub args_bytes: usize,
    /// One resolved reference.
    pub reference_bytes: usize,
    /// Diagnostics kept of one declaration.
    pub diagnostics: usize,
    /// Diagnostics shown to the model.
    pub notice_diagnostics: usize,
    /// Declarations of one run.
    pub declarations: u32,
    /// Graphs of a conversation that are open at the same time.
    pub open_graphs: usize,
    /// Delegation depth.
    pub agent_depth: u8,
    /// Attempts of one action.
    pub attempts: u8,
    /// Decisions by which one failed action may be retried.
    pub decisions: u8,
    /// Actions that run at the same time.
    pub parallel: u8,
    /// Agents that run or are waited for at the same time.
    pub agents: u8,
    /// Time that an aborted action has to confirm its end.
    pub grace_ms: u32,
    /// Longest delay before a retry.
    pub retry_delay_ms: u32,
    /// Transitions kept in a graph.
    pub transitions: usize,
    /// Longest attempt of a tool or a word.
    pub tool_timeout_ms: u32,
    /// Longest attempt of a service or a pipeline.
    pub service_timeout_ms: u32,
    /// Longest child run.
    pub agent_timeout_ms: u32,
    /// Longest wait for an answer of the user.
    pub human_timeout_ms: u32,
    /// Output text that is stored.
    pub stored_output_bytes: usize,
    /// Raw output that is stored for inspection.
    pub raw_bytes: usize,
}

/// Items that one `for_each` may create at most.
pub const FOR_EACH_MAX: u16 = 64;
/// Iterations that one `repeat` may make at most.
pub const REPEAT_MAX: u8 = 8;
/// Longest pause between two iterations of a `repeat`, in milliseconds.
pub const REPEAT_DELAY_MAX: u32 = 60_000;

impl Default for GraphLimits {
    fn default() -> Self {
        Self {
            carrier_bytes: 256 << 10,
            output_bytes: 512 << 10,
            json_depth: 16,
            carrier_actions: 32,
            full_actions: 64,
            instances: 128,
            dependencies: 16,
            graph_depth: 32,
            sections: 64,
            section_bytes: 64 << 10,
            title_chars: 120,
            description_chars: 1_000,
            reason_chars: 500,
            args_bytes: 64 << 10,
            reference_bytes: 64 << 10,
            diagnostics: 20,
            notice_diagnostics: 8,
            declarations: 24,
            open_graphs: 5,
            agent_depth: 3,
            attempts: 5,
            decisions: 3,
            parallel: 4,
            agents: 4,
            grace_ms: 5_000,
            retry_delay_ms: 60_000,
            transitions: 2_000,
            tool_timeout_ms: 120_000,
            service_timeout_ms: 60_000,
            agent_timeout_ms: 600_000,
            human_timeout_ms: 1_800_000,
            stored_output_bytes: 10 << 20,
            raw_bytes: 64 << 10,
        }
    }
}

impl GraphLimits {
    /// Longest attempt of an action: its own limit can only lower that of its executor's class.
    pub fn timeout_ms(&self, kind: ExecutorKind, own: Option<u32>) -> u32 {
        let max = match kind {
            ExecutorKind::Tool | ExecutorKind::Runtime => self.tool_timeout_ms,
            ExecutorKind::Service | ExecutorKind::Pipeline => self.service_timeout_ms,
            ExecutorKind::Agent => self.agent_timeout_ms,
            ExecutorKind::Human => self.human_timeout_ms,
        };
        own.unwrap_or(max).min(max)
    }
}
