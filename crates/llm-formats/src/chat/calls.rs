//! Separates the tool calls of one completion. Providers number them, give them ids, or do both incorrectly.

use std::collections::HashSet;

use protocol::JsonObject;
use protocol::message::{FunctionCall, ToolCall};
use serde_json::{Value, json};

use super::{arguments_of, carried, is_id, text_of};

/// Maximum calls that deltas may continue: more than any model makes in parallel.
const MAX_OPEN_CALLS: usize = 128;

/// Gives each call of a message a unique id.
pub fn assign_call_ids(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    // Unique within a message: runners match results to calls by id.
    let mut ids = HashSet::new();
    for (n, call) in calls.into_iter().flatten().enumerate() {
        let original_id = text_of(call, "id").filter(|id| is_id(id));
        let id = unused_id(&mut ids, original_id.as_deref(), n);
        if original_id.as_ref() != Some(&id)
            && let Some(call) = call.as_object_mut()
        {
            call.insert("id".to_owned(), json!(id));
        }
    }
}

/// Returns the provider's id, unless another call has it.
fn unused_id(ids: &mut HashSet<String>, original_id: Option<&str>, mut number: usize) -> String {
    let mut id = original_id.unwrap_or_default().to_owned();
    // Numbers may collide with ids of the provider, so each candidate is checked.
    while id.is_empty() || ids.contains(&id) {
        id = format!("call_{number}");
        number += 1;
    }
    ids.insert(id.clone());
    id
}

/// Assigns deltas to the calls of one choice. A complete arguments object ends a call.
#[derive(Debug, Default)]
pub struct CallTracker {
    calls: Vec<OpenCall>,
    /// Ids of all calls, as runners see them.
    ids: HashSet<String>,
    indexes: HashSet<u64>,
}

/// Part of one call in one delta.
pub(super) struct CallPiece {
    id: String,
    index: u64,
    /// True for the first piece of its call.
    begins: bool,
    /// Only in the first piece with a name.
    name: String,
    arguments: String,
    /// Members of the call to return to its model, in the first piece of a delta.
    carried: Option<JsonObject>,
}

impl CallPiece {
    pub(super) fn into_call(self) -> ToolCall {
        ToolCall {
            id: self.id,
            kind: "function".to_owned(),
            function: FunctionCall {
                name: self.name,
                arguments: self.arguments,
            },
            provider_specific_fields: self.carried,
        }
    }
}

impl CallTracker {
    /// Rewrites `delta.tool_calls` so that each call has a unique index and id. Other members stay.
    pub fn settle(&mut self, delta: &mut Value) {
        let Some(Value::Array(calls)) = delta.get_mut("tool_calls") else {
            return;
        };
        // Taken out, since one call may become several.
        let original_calls = std::mem::take(calls);
        for (n, mut call) in original_calls.into_iter().enumerate() {
            let mut pieces = self.read(n as u64, &call).into_iter();
            // No piece: the call was not an object.
            let Some(first) = pieces.next() else { continue };
            let is_cut = pieces.len() > 0;
            call["index"] = json!(first.index);
            if first.begins || !call["id"].is_null() {
                call["id"] = json!(first.id);
            }
            if is_cut || call["function"]["arguments"].is_object() {
                call["function"]["arguments"] = json!(first.arguments);
            }
            // Only the first delta of a call has the name. A second call after a complete object may have none.
            if first.begins && !first.name.is_empty() {
                call["function"]["name"] = json!(first.name);
            }
            calls.push(call);
            calls.extend(pieces.map(|piece| {
                json!({"index": piece.index, "id": piece.id, "type": "function",
                    "function": {"name": piece.name, "arguments": piece.arguments}})
            }));
        }
    }

    /// Returns true if any call has started.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Reads one call of a delta. `n`: its index in the chunk. Values that are not objects are ignored.
    pub(super) fn read(&mut self, n: u64, call: &Value) -> Vec<CallPiece> {
        if !call.is_object() {
            return Vec::new();
        }
        let delta = CallDelta::of(call, n);
        // Bounds the search: a stream may have any number of calls.
        let last = self.calls.len().saturating_sub(MAX_OPEN_CALLS);
        let open = delta.find_open_call(&self.calls[last..]);
        let mut begins = open.is_none();
        let mut position = open.map_or(self.calls.len(), |position| last + position);
        if begins {
            self.begin(&delta);
        }
        // Only in the first piece: the members belong to the delta, not to each call that it contains.
        let carried = carried::of_call(call);
        let mut pieces = Vec::new();
        let mut rest = delta.arguments.as_str();
        loop {
            let call = &mut self.calls[position];
            // A second object in the arguments is a second call with the same id and index.
            let cut = call.arguments.feed(rest);
            // Past the limit, objects stay together instead of starting ever more calls.
            let cut = cut.filter(|_| position.max(self.calls.len()) < last + 2 * MAX_OPEN_CALLS);
            let (arguments, behind) = rest.split_at(cut.unwrap_or(rest.len()));
            // A call that a delta ends without arguments of its own gets no empty piece.
            let has_piece = begins || !arguments.is_empty() || cut.is_none();
            if has_piece {
                pieces.push(self.piece(position, begins, &delta.name, arguments));
            }
            if cut.is_none() {
                if let Some(first) = pieces.first_mut() {
                    first.carried = carried;
                }
                return pieces;
            }
            // A second object without a name of its own repeats the same function.
            let name = self.calls[position].name.clone();
            position = self.calls.len();
            self.begin(&delta);
            if delta.name.is_empty() {
                self.calls[position].name = name;
            }
            (begins, rest) = (true, behind);
        }
    }

    fn piece(&mut self, position: usize, begins: bool, name: &str, arguments: &str) -> CallPiece {
        let call = &mut self.calls[position];
        let is_new = call.name.is_empty();
        if is_new {
            name.clone_into(&mut call.name);
        }
        CallPiece {
            id: call.id.clone(),
            index: call.shown_index,
            begins,
            // Some providers repeat the name in each chunk.
            name: if is_new || begins {
                call.name.clone()
            } else {
                String::new()
            },
            arguments: arguments.to_owned(),
            carried: None,
        }
    }

    fn begin(&mut self, delta: &CallDelta) {
        let id = unused_id(&mut self.ids, delta.id.as_deref(), self.calls.len());
        let mut shown_index = delta.index;
        // Runners key calls by index, so a repeated index of another call must change.
        if self.indexes.contains(&shown_index) {
            shown_index = self.indexes.len() as u64;
            while self.indexes.contains(&shown_index) {
                shown_index += 1;
            }
        }
        self.indexes.insert(shown_index);
        self.calls.push(OpenCall {
            id,
            provider_id: delta.id.clone(),
            index: delta.index,
            shown_index,
            name: String::new(),
            arguments: ObjectScan::default(),
        });
    }
}

/// A call that deltas may continue.
#[derive(Debug)]
struct OpenCall {
    /// Id that runners see.
    id: String,
    /// Id of the provider, if any.
    provider_id: Option<String>,
    index: u64,
    /// Index that runners see.
    shown_index: u64,
    name: String,
    arguments: ObjectScan,
}

/// One call in one chunk.
struct CallDelta {
    index: u64,
    is_numbered: bool,
    id: Option<String>,
    name: String,
    arguments: String,
}

impl CallDelta {
    /// `n`: position in the chunk, the default index.
    fn of(call: &Value, n: u64) -> Self {
        let index = call.get("index").and_then(Value::as_u64);
        let function = call.get("function").unwrap_or(&Value::Null);
        Self {
            index: index.unwrap_or(n),
            is_numbered: index.is_some(),
            id: text_of(call, "id").filter(|id| is_id(id)),
            name: text_of(function, "name").unwrap_or_default(),
            arguments: arguments_of(function),
        }
    }

    /// Finds the open call that this delta continues. Providers may omit indexes, repeat ids, or change the id
    /// with each delta. A delta without a name continues the newest call at its index.
    fn find_open_call(&self, open: &[OpenCall]) -> Option<usize> {
        // Two names cannot be of one call, whatever their index.
        let is_another = |call: &OpenCall| {
            !self.name.is_empty() && !call.name.is_empty() && self.name != call.name
        };
        // Some servers number all calls 0, so an id decides if the delta has no index.
        let of_id = |call: &OpenCall| {
            let is_same = self.id.is_some() && call.provider_id == self.id;
            is_same && (call.index == self.index || !self.is_numbered) && !is_another(call)
        };
        // A delta with another id at the same index is a new call, unless it has no name.
        let at_index = |call: &OpenCall| {
            let is_meant = self.id.is_none() || call.provider_id.is_none() || self.name.is_empty();
            let is_at_index = call.index == self.index && (self.is_numbered || self.id.is_none());
            is_meant && is_at_index && !is_another(call)
        };
        // The newest call first: older ones are complete in most streams.
        open.iter()
            .rposition(of_id)
            .or_else(|| open.iter().rposition(at_index))
    }
}

/// Finds the end of a JSON object whose text arrives in pieces.
#[derive(Debug, Default)]
pub(crate) struct ObjectScan {
    state: ScanState,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    // Numbers, texts and lists are no objects; their end is unknown.
    Before,
    Inside,
    /// After the end of the object.
    After,
    /// Not an object.
    Other,
}

impl ObjectScan {
    /// Reads a piece. Returns the offset at which a second object starts.
    pub(crate) fn feed(&mut self, text: &str) -> Option<usize> {
        // Bytes suffice: all structural characters are ASCII.
        for (at, byte) in text.bytes().enumerate() {
            // `take` also resets the flag, so that exactly one character is escaped.
            match (self.state, byte) {
                (ScanState::Other, _) => return None,
                (ScanState::Inside, byte) => self.inside(byte),
                (_, b' ' | b'\t' | b'\r' | b'\n') => {}
                (ScanState::Before, b'{') => (self.state, self.depth) = (ScanState::Inside, 1),
                (ScanState::After, b'{') => return Some(at),
                _ => self.state = ScanState::Other,
            }
        }
        None
    }

    /// Returns true after the end of an object.
    pub(crate) fn is_complete(&self) -> bool {
        self.state == ScanState::After
    }

    fn inside(&mut self, byte: u8) {
        if self.is_in_string {
            match byte {
                _ if std::mem::take(&mut self.is_escaped) => {}
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    self.state = ScanState::After;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_answers_have_unique_call_ids() {
        let mut message = json!({"tool_calls": [{"id": "call_0"}, {"id": "call_0"}, {"id": null}, {"id": "call_1"}, 7]});
        assign_call_ids(&mut message);
        let calls = message["tool_calls"].as_array().unwrap();
        let ids: Vec<_> = calls.iter().filter_map(|call| call.get("id")).collect();
        assert_eq!(ids, ["call_0", "call_1", "call_2", "call_3"]);
    }

    #[test]
    fn rewritten_deltas_have_unique_index_and_id() {
        let mut tracker = CallTracker::default();
        let mut settle = |calls: Value| {
            let mut delta = json!({"tool_calls": calls});
            tracker.settle(&mut delta);
            delta["tool_calls"].take()
        };
        let call = |arguments: &str| json!({"index": 0, "id": "c", "x": 1, "function": {"name": "f", "arguments": arguments}});
        assert_eq!(settle(json!([call("{}")])), json!([call("{}")]));
        let second = json!([{"index": 1, "id": "call_1", "x": 1, "function": {"name": "f", "arguments": "{"}}]);
        assert_eq!(settle(json!([call("{")])), second);
        let more = json!([{"index": 0, "function": {"arguments": "}"}}]);
        let moved = json!([{"index": 1, "function": {"arguments": "}"}}]);
        assert_eq!(settle(more), moved);
    }
}
