//! Tool calls of an answer.

use serde_json::{Value, json};

use super::super::item::ItemBody;
use super::super::tools::custom_input;
use super::ResponseEventWriter;
use crate::chat::carried::{merge_provider_members, of_call};

/// A call whose chunks are arriving.
#[derive(Debug, Default)]
pub(super) struct StreamedCall {
    id: String,
    name: String,
    /// Arguments that arrived before the name.
    early: String,
    output: Option<usize>,
}

impl ResponseEventWriter {
    /// Starts or continues a call.
    pub(super) fn call(&mut self, index: u64, delta: &Value) {
        let function = &delta["function"];
        let arguments = function["arguments"].as_str().unwrap_or_default();
        self.bytes += arguments.len();
        let collects = self.collects_reasoning();
        let call = self.calls.entry(index).or_default();
        // Only the first id counts: some providers repeat it, some send a new one with each delta.
        if let Some(id) = delta["id"].as_str().filter(|_| call.id.is_empty()) {
            id.clone_into(&mut call.id);
        }
        if let Some(name) = function["name"].as_str().filter(|_| call.name.is_empty()) {
            name.clone_into(&mut call.name);
        }
        if collects && let Some(members) = of_call(delta) {
            self.bytes += members
                .values()
                .map(|value| value.to_string().len())
                .sum::<usize>();
            // Chunks of one call may each have members.
            let members_before = self.carried.remove(&call.id);
            let mut members_before = Some(members_before.unwrap_or_default());
            merge_provider_members(&mut members_before, members);
            self.carried
                .insert(call.id.clone(), members_before.unwrap_or_default());
        }
        if let Some(output) = call.output {
            self.continue_call(output, arguments);
            return;
        }
        // The item needs a name, which some providers send after the first arguments.
        call.early.push_str(arguments);
        if !call.name.is_empty() {
            self.begin_call(index);
        }
    }

    fn begin_call(&mut self, index: u64) {
        let Some(call) = self.calls.get_mut(&index) else {
            return;
        };
        let (call_id, early) = (call.id.clone(), std::mem::take(&mut call.early));
        let tool = self.names.tool(&call.name);
        // A call ends the open text: items of a response are sequential.
        self.close_open("completed");
        let body = ItemBody::Call {
            call_id,
            tool,
            arguments: String::new(),
        };
        let output = self.add(body);
        if let Some(call) = self.calls.get_mut(&index) {
            call.output = Some(output);
        }
        self.continue_call(output, &early);
    }

    fn continue_call(&mut self, output: usize, more: &str) {
        let item = &mut self.items[output];
        let ItemBody::Call {
            tool, arguments, ..
        } = &mut item.body
        else {
            return;
        };
        arguments.push_str(more);
        // The input of a custom tool is inside the arguments. It is sent once they are complete.
        if more.is_empty() || tool.is_custom {
            return;
        }
        let delta = json!({"item_id": item.id, "output_index": output, "delta": more});
        self.event("response.function_call_arguments.delta", delta);
    }

    fn close_call(&mut self, output: usize, status: &'static str) {
        let item = &self.items[output];
        let ItemBody::Call {
            tool, arguments, ..
        } = &item.body
        else {
            return;
        };
        let position = json!({"item_id": item.id, "output_index": output});
        if tool.is_custom {
            let input = custom_input(arguments);
            let (mut delta, mut done) = (position.clone(), position);
            delta["delta"] = json!(input);
            done["input"] = json!(input);
            self.event("response.custom_tool_call_input.delta", delta);
            self.event("response.custom_tool_call_input.done", done);
        } else {
            let mut done = position;
            done["arguments"] = json!(arguments);
            done["name"] = json!(tool.name);
            self.event("response.function_call_arguments.done", done);
        }
        self.close_item(output, status);
    }

    pub(super) fn close_calls(&mut self, status: &'static str) {
        let calls: Vec<_> = self
            .calls
            .iter()
            .map(|(index, call)| (*index, call.output))
            .collect();
        // A call that never got a name is still reported: its arguments would be lost otherwise.
        for (index, _) in calls.iter().filter(|(_, output)| output.is_none()) {
            self.begin_call(*index);
        }
        let mut outputs: Vec<_> = self.calls.values().filter_map(|call| call.output).collect();
        // In the order of `output`: the map is in the order of the provider's indexes.
        outputs.sort_unstable();
        for output in outputs {
            self.close_call(output, status);
        }
    }
}
