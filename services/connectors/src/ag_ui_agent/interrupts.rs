//! Interrupts of a run as consecutive questions, and the answers to them.

use protocol::JsonObject;
use protocol::interaction::{InteractionRequest, InteractionSubmission};
use serde_json::{Value, json};

use crate::machine::{MachineOutput, OutputQueue};
use crate::upstream::json::filled;
use crate::upstream::question::{action, fields_of, question, value_of};

/// The open questions, for the case that the run ends before their answers.
const PENDING: &str = "external.pending_interrupts";
/// Maximum bytes of the questions in the state.
const MAX_PENDING: usize = 32 * 1024;
/// Maximum interrupts of one run; further ones are ignored.
const MAX_INTERRUPTS: usize = 20;
/// The members of an interrupt that its question and its answer need.
const MEMBERS: [&str; 5] = ["id", "reason", "message", "toolCallId", "responseSchema"];

#[derive(Default)]
pub(super) struct AgUiQuestions {
    open: Vec<Value>,
    /// Resume entries.
    answers: Vec<Value>,
    question_count: u32,
}

impl AgUiQuestions {
    /// The questions of an outcome. `None` if no interrupt has an id.
    pub(super) fn of(interrupts: &Value, question_count: u32) -> Option<Self> {
        let list = interrupts.as_array()?.iter();
        let list = list.filter(|interrupt| filled(&interrupt["id"]).is_some());
        let reduced = |interrupt: &Value| -> Value {
            let members = MEMBERS.iter();
            let members = members
                .filter_map(|name| Some(((*name).to_owned(), interrupt.get(*name)?.clone())));
            Value::Object(members.collect())
        };
        let open: Vec<_> = list.take(MAX_INTERRUPTS).map(reduced).collect();
        (!open.is_empty()).then_some(Self {
            open,
            answers: Vec::new(),
            question_count,
        })
    }

    /// The questions of an earlier run, if this is the answer to the first one.
    pub(super) fn restore(state: &JsonObject, answer: &InteractionSubmission) -> Option<Self> {
        let stored = state.get(PENDING)?;
        let list = |name: &str| stored[name].as_array().cloned().unwrap_or_default();
        let is_current = stored["interaction_id"] == answer.interaction_id.as_str();
        is_current.then(|| Self {
            open: list("open"),
            answers: list("answers"),
            question_count: 0,
        })
    }

    /// Number of questions so far. It makes ids unique within a run.
    pub(super) fn question_count(&self) -> u32 {
        self.question_count
    }

    /// Asks the first open question, and stores all for an answer after the end of the run.
    pub(super) fn ask(&mut self, out: &mut OutputQueue) {
        let Some(interrupt) = self.open.first() else {
            return;
        };
        self.question_count += 1;
        let id = interrupt["id"].as_str().unwrap_or_default();
        let request = question_of(interrupt, &format!("ag_ui_{id}_{}", self.question_count));
        let stored = json!({"interaction_id": request.interaction_id, "open": self.open, "answers": self.answers});
        // Questions beyond the limit are answered within this run or not at all.
        let is_small = stored.to_string().len() <= MAX_PENDING;
        out.remember(PENDING, if is_small { stored } else { Value::Null });
        out.push(MachineOutput::Ask(Box::new(request)));
    }

    /// Records the answer to the first open question. Asks the next one, or returns the entries that resume the agent.
    pub(super) fn answer(
        &mut self,
        taken: Option<&str>,
        values: &JsonObject,
        out: &mut OutputQueue,
    ) -> Option<Value> {
        if !self.open.is_empty() {
            let interrupt = self.open.remove(0);
            self.answers.push(entry(&interrupt, taken, values));
        }
        if !self.open.is_empty() {
            self.ask(out);
            return None;
        }
        Self::forget(out);
        Some(Value::Array(std::mem::take(&mut self.answers)))
    }

    /// Removes the stored questions.
    pub(super) fn forget(out: &mut OutputQueue) {
        out.remember(PENDING, Value::Null);
    }
}

/// True for the approval of a tool call, whose answer has no form.
fn is_approval(interrupt: &Value) -> bool {
    !interrupt["responseSchema"].is_object() && filled(&interrupt["toolCallId"]).is_some()
}

fn question_of(interrupt: &Value, id: &str) -> InteractionRequest {
    let text = filled(&interrupt["message"]).or_else(|| filled(&interrupt["reason"]));
    let text = text.unwrap_or_default();
    if is_approval(interrupt) {
        let actions = vec![
            action("approve", "Approve", true),
            action("reject", "Reject", false),
        ];
        return question(id, text, Vec::new(), actions);
    }
    let actions = vec![
        action("send", "Send", true),
        action("cancel", "Cancel", false),
    ];
    let mut fields = fields_of(&interrupt["responseSchema"]);
    // A cancelled question has no values, so no field may be required.
    for field in &mut fields {
        field.required = false;
    }
    question(id, text, fields, actions)
}

fn entry(interrupt: &Value, taken: Option<&str>, values: &JsonObject) -> Value {
    let id = &interrupt["id"];
    if taken == Some("cancel") {
        return json!({"interruptId": id, "status": "cancelled"});
    }
    let payload = if is_approval(interrupt) {
        json!({"approved": taken != Some("reject")})
    } else {
        value_of(&interrupt["responseSchema"], values)
    };
    json!({"interruptId": id, "status": "resolved", "payload": payload})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_resume_entries() {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let form = json!({"id": "i", "reason": "r", "responseSchema": schema});
        let approval = json!({"id": "i", "reason": "r", "toolCallId": "c"});
        let values = json!({"city": "Paris"});
        let values = values.as_object().unwrap();
        let resolved =
            |payload: Value| json!({"interruptId": "i", "status": "resolved", "payload": payload});
        assert_eq!(
            entry(&form, Some("send"), values),
            resolved(json!({"city": "Paris"}))
        );
        assert_eq!(
            entry(&form, Some("cancel"), values),
            json!({"interruptId": "i", "status": "cancelled"})
        );
        assert_eq!(
            entry(&approval, Some("approve"), values),
            resolved(json!({"approved": true}))
        );
        assert_eq!(
            entry(&approval, Some("reject"), values),
            resolved(json!({"approved": false}))
        );
    }

    #[test]
    fn interrupts_without_id_cannot_be_answered() {
        assert!(AgUiQuestions::of(&json!([{"reason": "r"}]), 0).is_none());
        assert!(AgUiQuestions::of(&json!([]), 0).is_none());
        assert!(AgUiQuestions::of(&json!([{"id": "i"}]), 0).is_some());
    }
}
