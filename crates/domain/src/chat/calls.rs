//! The tool calls of one completion, told apart. Providers number them, give them ids, or do neither rightly.

use std::collections::HashSet;

use protocol::JsonObject;
use protocol::message::{FunctionCall, ToolCall};
use serde_json::{Value, json};

use super::{arguments_of, carried, is_id, text_of};

/// Calls that deltas may still go on with: more than any model makes at once.
const MOST_OPEN: usize = 128;

/// Gives each call of a message an id that no other call of it has.
pub fn tell_calls_apart(message: &mut Value) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    let mut ids = HashSet::new();
    for (n, call) in calls.into_iter().flatten().enumerate() {
        let said = text_of(call, "id").filter(|id| is_id(id));
        let id = unused_id(&mut ids, said.as_deref(), n);
        if said.as_ref() != Some(&id)
            && let Some(call) = call.as_object_mut()
        {
            call.insert("id".to_owned(), json!(id));
        }
    }
}

/// The provider's id, unless another call has it.
fn unused_id(ids: &mut HashSet<String>, said: Option<&str>, mut number: usize) -> String {
    let mut id = said.unwrap_or_default().to_owned();
    while id.is_empty() || ids.contains(&id) {
        id = format!("call_{number}");
        number += 1;
    }
    ids.insert(id.clone());
    id
}

/// Tells the calls of one choice apart as their deltas come. An object that is whole ends a call.
#[derive(Debug, Default)]
pub struct CallTracker {
    calls: Vec<OpenCall>,
    /// Of all calls, as runners see them.
    ids: HashSet<String>,
    indexes: HashSet<u64>,
}

/// The part of one call in one delta.
pub(super) struct CallPiece {
    id: String,
    index: u64,
    /// It is the first of its call.
    begins: bool,
    /// Only with the first piece that has one.
    name: String,
    arguments: String,
    /// Members of the call that go back to its model, with the first piece of a delta.
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
    /// Rewrites `delta.tool_calls` so that each call has an index and an id of its own. Other members stay.
    pub fn settle(&mut self, delta: &mut Value) {
        let Some(Value::Array(calls)) = delta.get_mut("tool_calls") else {
            return;
        };
        let told = std::mem::take(calls);
        for (n, mut call) in told.into_iter().enumerate() {
            let mut pieces = self.read(n as u64, &call).into_iter();
            let Some(first) = pieces.next() else { continue };
            let is_cut = pieces.len() > 0;
            call["index"] = json!(first.index);
            if first.begins || !call["id"].is_null() {
                call["id"] = json!(first.id);
            }
            if is_cut || call["function"]["arguments"].is_object() {
                call["function"]["arguments"] = json!(first.arguments);
            }
            // A name goes with the first delta of a call alone; another call behind a whole object may lack it.
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

    /// Whether any call has begun.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// `n`: the place of the call in its chunk. What is no object is no call.
    pub(super) fn read(&mut self, n: u64, call: &Value) -> Vec<CallPiece> {
        if !call.is_object() {
            return Vec::new();
        }
        let delta = CallDelta::of(call, n);
        let last = self.calls.len().saturating_sub(MOST_OPEN);
        let open = delta.place_in(&self.calls[last..]);
        let mut begins = open.is_none();
        let mut place = open.map_or(self.calls.len(), |place| last + place);
        if begins {
            self.begin(&delta);
        }
        let carried = carried::of_call(call);
        let mut pieces = Vec::new();
        let mut rest = delta.arguments.as_str();
        loop {
            let call = &mut self.calls[place];
            let cut = call.arguments.feed(rest);
            let cut = cut.filter(|_| place.max(self.calls.len()) < last + 2 * MOST_OPEN);
            let (arguments, behind) = rest.split_at(cut.unwrap_or(rest.len()));
            let is_said = begins || !arguments.is_empty() || cut.is_none();
            if is_said {
                pieces.push(self.piece(place, begins, &delta.name, arguments));
            }
            if cut.is_none() {
                if let Some(first) = pieces.first_mut() {
                    first.carried = carried;
                }
                return pieces;
            }
            let name = self.calls[place].name.clone();
            place = self.calls.len();
            self.begin(&delta);
            if delta.name.is_empty() {
                self.calls[place].name = name;
            }
            (begins, rest) = (true, behind);
        }
    }

    fn piece(&mut self, place: usize, begins: bool, name: &str, arguments: &str) -> CallPiece {
        let call = &mut self.calls[place];
        let is_new = call.name.is_empty();
        if is_new {
            name.clone_into(&mut call.name);
        }
        CallPiece {
            id: call.id.clone(),
            index: call.shown_index,
            begins,
            // Said again in each chunk by some.
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

/// A call that deltas may go on with.
#[derive(Debug)]
struct OpenCall {
    /// As runners see it.
    id: String,
    /// As the provider calls it; `None`: it does not.
    provider_id: Option<String>,
    index: u64,
    /// As runners see it.
    shown_index: u64,
    name: String,
    arguments: ObjectScan,
}

/// One call as one chunk states it.
struct CallDelta {
    index: u64,
    is_numbered: bool,
    id: Option<String>,
    name: String,
    arguments: String,
}

impl CallDelta {
    /// `n`: its place in the chunk, which stands for an index that is not there.
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

    /// The call that this goes on with, among those that are open. Not every provider numbers its calls, gives each an id
    /// of its own, or says the same id with each delta: without a name it is more of the newest at its index.
    fn place_in(&self, open: &[OpenCall]) -> Option<usize> {
        let is_another = |call: &OpenCall| {
            !self.name.is_empty() && !call.name.is_empty() && self.name != call.name
        };
        let of_id = |call: &OpenCall| {
            let is_same = self.id.is_some() && call.provider_id == self.id;
            is_same && (call.index == self.index || !self.is_numbered) && !is_another(call)
        };
        let at_index = |call: &OpenCall| {
            let is_meant = self.id.is_none() || call.provider_id.is_none() || self.name.is_empty();
            let has_place = call.index == self.index && (self.is_numbered || self.id.is_none());
            is_meant && has_place && !is_another(call)
        };
        open.iter()
            .rposition(of_id)
            .or_else(|| open.iter().rposition(at_index))
    }
}

/// Finds the end of a JSON object whose text comes in pieces.
#[derive(Debug, Default)]
struct ObjectScan {
    place: ScanPlace,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanPlace {
    #[default]
    Before,
    Inside,
    /// Behind the end of the object.
    Behind,
    /// It is no object.
    Other,
}

impl ObjectScan {
    /// Reads a piece up to where another object begins behind the end of this one: that place.
    fn feed(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match (self.place, byte) {
                (ScanPlace::Other, _) => return None,
                (ScanPlace::Inside, byte) => self.inside(byte),
                (_, b' ' | b'\t' | b'\r' | b'\n') => {}
                (ScanPlace::Before, b'{') => (self.place, self.depth) = (ScanPlace::Inside, 1),
                (ScanPlace::Behind, b'{') => return Some(at),
                _ => self.place = ScanPlace::Other,
            }
        }
        None
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
                    self.place = ScanPlace::Behind;
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
    fn whole_answers_give_each_call_an_id() {
        let mut message = json!({"tool_calls": [{"id": "call_0"}, {"id": "call_0"}, {"id": null}, {"id": "call_1"}, 7]});
        tell_calls_apart(&mut message);
        let calls = message["tool_calls"].as_array().unwrap();
        let ids: Vec<_> = calls.iter().filter_map(|call| call.get("id")).collect();
        assert_eq!(ids, ["call_0", "call_1", "call_2", "call_3"]);
    }

    #[test]
    fn settled_deltas_have_an_index_and_an_id_each() {
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
