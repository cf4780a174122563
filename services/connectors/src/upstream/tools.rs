//! Calls of tools that the platform runs itself.

use serde_json::Value;

use crate::machine::OutputQueue;
use crate::upstream::results;

/// Tool calls of one run that are told; further ones are not.
const MOST_CALLS: usize = 256;

/// Tells each call's start and end once.
#[derive(Debug, Default)]
pub struct ToolEvents(Vec<TrackedCall>);

#[derive(Debug)]
struct TrackedCall {
    id: String,
    name: String,
    is_over: bool,
}

impl ToolEvents {
    /// A call began.
    pub fn start(&mut self, id: &str, name: &str, parameters: Value, out: &mut OutputQueue) {
        if self.0.len() >= MOST_CALLS || self.0.iter().any(|call| call.id == id) {
            return;
        }
        out.tell(results::tool_started(id, name, parameters));
        self.0.push(TrackedCall {
            id: id.to_owned(),
            name: name.to_owned(),
            is_over: false,
        });
    }

    /// A call that was started ended.
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

    /// True once a call was told.
    pub fn has_told(&self) -> bool {
        !self.0.is_empty()
    }
}
