//! Converts a posted HTML form to an answer. [`check_answer`](super::check_answer) validates it.

use protocol::interaction::{
    InteractionField, InteractionFieldType, InteractionRequest, InteractionSubmission,
};
use serde_json::Value;

/// Name of the form's buttons. The value of a button is its action id.
pub const ACTION: &str = "action";

/// Returns the name of the form control for the field at this index.
pub fn control_name(index: usize) -> String {
    format!("field-{index}")
}

/// Converts the name-value pairs of a posted form, in order. Pairs with other names are ignored.
pub fn submission_of_form(
    request: &InteractionRequest,
    pairs: &[(String, String)],
) -> InteractionSubmission {
    let named = |name: &str| -> Vec<&str> {
        let of_name = pairs.iter().filter(|(sent_name, _)| sent_name == name);
        of_name.map(|(_, value)| value.as_str()).collect()
    };
    let fields = request.fields.iter().enumerate();
    let values = fields.filter_map(|(index, field)| {
        let value = value_of(field, &named(&control_name(index)))?;
        Some((field.id.clone(), value))
    });
    InteractionSubmission {
        interaction_id: request.interaction_id.clone(),
        // Browsers send only the button that was pressed, but a crafted post may have several.
        action_id: named(ACTION).first().map(|id| (*id).to_owned()),
        values: values.collect(),
        // The gateway sets the time.
        submitted_at: None,
    }
}

fn value_of(field: &InteractionField, sent: &[&str]) -> Option<Value> {
    let first = sent.first().copied().unwrap_or_default();
    match field.kind {
        // Browsers omit the control of an unchecked box.
        InteractionFieldType::Boolean => Some(Value::Bool(!sent.is_empty())),
        // One pair for each selected option; none selects nothing.
        InteractionFieldType::Multiselect => Some(sent.iter().copied().collect()),
        // Browsers send empty controls too: an empty text is no value.
        _ if first.is_empty() => None,
        InteractionFieldType::Number => {
            // An invalid number stays a text, which the validation rejects with a pointer.
            let number = serde_json::from_str::<serde_json::Number>(first.trim());
            Some(number.map_or_else(|_| first.into(), Value::Number))
        }
        // Browsers end lines with CR LF.
        InteractionFieldType::Textarea => Some(first.replace("\r\n", "\n").into()),
        InteractionFieldType::Text | InteractionFieldType::Select | InteractionFieldType::File => {
            Some(first.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::interaction::check_answer;

    fn check(kind: &str, sent: &[&str], expected: &Value, is_valid: bool) {
        let request = json!({
            "interaction_id": "q", "title": "t", "fallback_text": "t",
            "fields": [{"id": "f", "label": "F", "type": kind,
                "options": [{"value": "a", "label": "A"}, {"value": "b", "label": "B"}]}],
            "actions": [{"id": "go", "label": "Go"}, {"id": "no", "label": "No"}],
        });
        let request: InteractionRequest = serde_json::from_value(request).unwrap();
        let mut pairs = vec![("action".to_owned(), "go".to_owned())];
        let sent = sent.iter().map(|value| ("field-0", *value));
        let other = [("field-1", "x"), ("other", "y")];
        pairs.extend(
            sent.chain(other)
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let answer = submission_of_form(&request, &pairs);
        let value = answer.values.get("f").cloned().unwrap_or(Value::Null);
        assert_eq!(
            (&value, answer.values.len() <= 1),
            (expected, true),
            "{kind}"
        );
        assert_eq!(answer.action_id.as_deref(), Some("go"));
        assert_eq!(
            check_answer(&request, &answer).is_empty(),
            is_valid,
            "{kind}"
        );
    }

    #[test]
    fn reads_each_control_by_its_field_type() {
        check("text", &["a b"], &json!("a b"), true);
        check("text", &[""], &Value::Null, true);
        check("textarea", &["a\r\nb"], &json!("a\nb"), true);
        check("number", &["1.5"], &json!(1.5), true);
        check("number", &["many"], &json!("many"), false);
        check("boolean", &["true"], &json!(true), true);
        check("boolean", &[], &json!(false), true);
        check("select", &["b"], &json!("b"), true);
        check("select", &["c"], &json!("c"), false);
        check("multiselect", &["a", "b"], &json!(["a", "b"]), true);
        check("multiselect", &[], &json!([]), true);
        check("multiselect", &["a", "a"], &json!(["a", "a"]), false);
    }
}
