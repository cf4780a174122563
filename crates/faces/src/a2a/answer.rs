//! A message of the user as the answer to a question of the task.

use protocol::admin::Fault;
use protocol::interaction::InteractionRequest;

use super::message::A2aPart;
use crate::answer::GivenAnswer;

const PARTS: &str = "/params/message/parts";

/// The answer of a data part, if the message has one.
pub(super) fn answer_of_data(parts: &[A2aPart]) -> Result<Option<GivenAnswer>, Fault> {
    let data = parts.iter().enumerate();
    let mut data = data.filter_map(|(at, part)| Some((at, part.data.as_ref()?)));
    let Some((at, data)) = data.next() else {
        return Ok(None);
    };
    let fault = || {
        let message = format!("must be like {}", GivenAnswer::FORM);
        Fault::new(format!("{PARTS}/{at}/data"), message)
    };
    GivenAnswer::of_value(data).map(Some).ok_or_else(fault)
}

/// The answer of the texts.
pub(super) fn answer_of_texts(
    parts: &[A2aPart],
    request: &InteractionRequest,
) -> Result<GivenAnswer, Fault> {
    let texts: Vec<_> = parts
        .iter()
        .filter_map(|part| part.text.as_deref())
        .collect();
    GivenAnswer::of_text(&texts.join("\n"), request).ok_or_else(|| {
        let message = "must answer the question: a text that is an action or the value of its only \
            field, or a data part with action_id and values";
        Fault::new(PARTS, message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parts(parts: Value) -> Vec<A2aPart> {
        serde_json::from_value(parts).unwrap()
    }

    #[test]
    fn data_parts_are_complete_answers() {
        let data = json!({"question": "q-1", "action_id": "book", "values": {"menu": "a"}});
        let answer = answer_of_data(&parts(json!([{"text": "x"}, {"data": data}])));
        let answer = answer.unwrap().unwrap();
        assert_eq!(answer.question.as_deref(), Some("q-1"));
        assert_eq!(answer.values, *json!({"menu": "a"}).as_object().unwrap());
        assert_eq!(answer_of_data(&parts(json!([{"text": "x"}]))), Ok(None));
        let fault = answer_of_data(&parts(json!([{"data": {"menu": "a"}}]))).unwrap_err();
        assert_eq!(fault.pointer, "/params/message/parts/0/data");
    }
}
