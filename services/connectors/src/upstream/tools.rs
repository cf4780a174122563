//! Tool calls that the platform runs itself.

use serde_json::Value;

use crate::machine::OutputQueue;
use crate::upstream::results;

/// Maximum tool calls reported per run; further ones are dropped.
const MAX_CALLS: usize = 256;

/// Emits the start and the end of each call once.
#[derive(Debug, Default)]
pub struct ToolEvents(Vec<TrackedCall>);

#[derive(Debug)]
struct TrackedCall {
    id: String,
    name: String,
    is_over: bool,
}

impl ToolEvents {
    /// Emits the start of a call, unless the id was reported before.
    pub fn start(&mut self, id: &str, name: &str, parameters: Value, out: &mut OutputQueue) {
        if self.0.len() >= MAX_CALLS || self.0.iter().any(|call| call.id == id) {
            // Platforms repeat a call's start with each snapshot: one id is one call.
            return;
        }
        out.tell(results::tool_started(id, name, parameters));
        self.0.push(TrackedCall {
            id: id.to_owned(),
            name: name.to_owned(),
            is_over: false,
        });
    }

    /// Emits the end of a started call. Ends of unknown or ended calls are dropped.
    pub fn complete(
        &mut self,
        id: &str,
        result: Value,
        error: Option<&str>,
        out: &mut OutputQueue,
    ) {
        let open = self
            .0
            .iter_mut()
            .find(|call| call.id == id && !call.is_over);
        if let Some(call) = open {
            call.is_over = true;
            out.tell(results::tool_completed(id, &call.name, result, error));
        }
    }

    /// True after the first reported call.
    pub fn has_reported(&self) -> bool {
        !self.0.is_empty()
    }
}
