//! The gateway's question about a tool call that may have been executed.

use protocol::JsonObject;
use protocol::interaction::{
    InteractionAction, InteractionActionStyle, InteractionKind, InteractionRequest,
};

use crate::canonical::canonical_json;

/// Maximum characters of the parameters in a question.
const PARAMETER_CHARS: usize = 2_000;
const DONE: &str = "done";
const NOT_DONE: &str = "not_done";
const AGAIN: &str = "again";

/// A call with an unknown outcome.
#[derive(Clone, Copy, Debug)]
pub struct UnknownCall<'a> {
    /// Unique per call.
    pub call_id: &'a str,
    pub tool: &'a str,
    /// The idempotency key that the tool received.
    pub ticket: &'a str,
    pub parameters: &'a JsonObject,
}

/// Answer of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersonVerdict {
    /// The call was executed.
    Done,
    /// The call was not executed, and is not repeated.
    NotDone,
    /// Repeat the call.
    Again,
}

impl PersonVerdict {
    /// Returns the verdict of an action of the question.
    pub fn of(action_id: Option<&str>) -> Option<Self> {
        match action_id? {
            DONE => Some(Self::Done),
            NOT_DONE => Some(Self::NotDone),
            AGAIN => Some(Self::Again),
            _ => None,
        }
    }
}

/// Returns the question about a call. It expires after the default time of questions.
pub fn question(call: &UnknownCall<'_>) -> InteractionRequest {
    let UnknownCall {
        call_id,
        tool,
        ticket,
        parameters,
    } = call;
    let mut parameters = canonical_json(parameters);
    if let Some((end, _)) = parameters.char_indices().nth(PARAMETER_CHARS) {
        parameters.truncate(end);
        parameters.push('…');
    }
    let action = |id: &str, label: &str, style| InteractionAction {
        id: id.to_owned(),
        label: label.to_owned(),
        style,
    };
    let title = format!("Did the call of {tool} happen?");
    let description = format!(
        "The call of the tool {tool} was sent, and its outcome is unknown. Look at its effect, then choose.\n\
         Idempotency key: {ticket}\nParameters: {parameters}"
    );
    InteractionRequest {
        // Not predictable, so a runner cannot ask under this id before.
        interaction_id: format!("tool_call.{call_id}"),
        kind: InteractionKind::Choice,
        fallback_text: format!("{title}\n{description}"),
        title,
        description: Some(description),
        fields: Vec::new(),
        actions: vec![
            action(DONE, "It happened", InteractionActionStyle::Primary),
            action(
                NOT_DONE,
                "It did not happen; leave it",
                InteractionActionStyle::Default,
            ),
            action(AGAIN, "Call it again", InteractionActionStyle::Danger),
        ],
        expires_at: None,
        awaits: true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::interaction::check_request;

    #[test]
    fn questions_are_valid_and_each_action_has_a_verdict() {
        let parameters = json!({"text": "ä".repeat(9_000)});
        let question = question(&UnknownCall {
            call_id: "0192",
            tool: &"t".repeat(128),
            ticket: &"f".repeat(64),
            parameters: parameters.as_object().unwrap(),
        });
        assert_eq!(check_request(&question, Some(0)), []);
        let verdicts = question.actions.iter();
        let verdicts = verdicts.map(|action| PersonVerdict::of(Some(&action.id)));
        let expected = [
            PersonVerdict::Done,
            PersonVerdict::NotDone,
            PersonVerdict::Again,
        ];
        assert_eq!(verdicts.collect::<Vec<_>>(), expected.map(Some));
        assert_eq!(PersonVerdict::of(None), None);
    }
}
