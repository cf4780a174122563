//! Interrupts of a run as consecutive questions, and the answers to them.

use protocol::interaction::InteractionRequest;
use serde_json::{Value, json};

use crate::mapping::PersonAnswer;
use crate::upstream::json::filled;
use crate::upstream::question::{action, fields_of, question, value_of};
use crate::upstream::question_queue::InterruptForm;

/// Maximum interrupts of one run; further ones are ignored.
const MAX_INTERRUPTS: usize = 20;
/// The members of an interrupt that its question and its answer need.
const MEMBERS: [&str; 5] = ["id", "reason", "message", "toolCallId", "responseSchema"];

/// Interrupts as questions, and answers as resume entries.
pub(super) const FORM: InterruptForm = InterruptForm {
    question: |interrupt, number| {
        let id = interrupt["id"].as_str().unwrap_or_default();
        question_of(interrupt, &format!("ag_ui_{id}_{number}"))
    },
    resume: entry,
};

/// The interrupts of an outcome that can be answered: those with an id.
pub(super) fn reduced(interrupts: &Value) -> Vec<Value> {
    let list = interrupts.as_array().into_iter().flatten();
    let list = list.filter(|interrupt| filled(&interrupt["id"]).is_some());
    let reduced = |interrupt: &Value| -> Value {
        let members = MEMBERS.iter();
        let members =
            members.filter_map(|name| Some(((*name).to_owned(), interrupt.get(*name)?.clone())));
        Value::Object(members.collect())
    };
    list.take(MAX_INTERRUPTS).map(reduced).collect()
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
            action("approve", "Approve", 0),
            action("reject", "Reject", 1),
        ];
        return question(id, text, Vec::new(), actions);
    }
    let actions = vec![action("send", "Send", 0), action("cancel", "Cancel", 1)];
    let mut fields = fields_of(&interrupt["responseSchema"]);
    // A cancelled question has no values, so no field may be required.
    for field in &mut fields {
        field.required = false;
    }
    question(id, text, fields, actions)
}

fn entry(interrupt: &Value, answer: &PersonAnswer) -> Value {
    let taken = answer.action.as_deref();
    let id = &interrupt["id"];
    if taken == Some("cancel") {
        return json!({"interruptId": id, "status": "cancelled"});
    }
    let payload = if is_approval(interrupt) {
        json!({"approved": taken != Some("reject")})
    } else {
        value_of(&interrupt["responseSchema"], &answer.values)
    };
    json!({"interruptId": id, "status": "resolved", "payload": payload})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_calls_resume_without_approval() {
        let approval = json!({"id": "i", "reason": "r", "toolCallId": "c"});
        let answer = PersonAnswer {
            action: Some("reject".to_owned()),
            ..PersonAnswer::default()
        };
        let resolved =
            json!({"interruptId": "i", "status": "resolved", "payload": {"approved": false}});
        assert_eq!(entry(&approval, &answer), resolved);
    }
}
