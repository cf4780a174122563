//! The end of a run as its rows: terminal event, status, output, transcript. Pure.

use domain::canonical::canonical_json;
use domain::normalize::{ResultCounts, RunMessages};
use domain::run::Run;
use protocol::message::Message;
use serde_json::{Value, json};
use store::{RunEnd, TranscriptWrite, terms_of};
use uuid::Uuid;

use crate::decide::transcript_text;
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;

/// The end of a run, without the promotion of the next one. A failure of the gateway adds its terminal event to the
/// buffer; the buffer has the terminal event of a runner already. `now`: epoch seconds.
pub(crate) fn terminal_of(
    run: &Run,
    buffer: &mut EventBuffer,
    tally: ResultCounts,
    ending: EndCause,
    now: i64,
) -> RunEnd {
    let mut metadata = tally.to_json();
    let (status, reason, error, run_messages) = match ending {
        EndCause::Runner(ending) => {
            if let Some(outcome) = ending.outcome {
                metadata["outcome"] = json!(outcome);
            }
            (
                ending.status,
                ending.reason,
                ending.error,
                ending.completed_messages,
            )
        }
        EndCause::Gateway { failure, messages } => {
            buffer.fail(&failure, now);
            let reason = failure.code.as_str().to_owned();
            (failure.code.status(), reason, failure.error(), messages)
        }
    };
    let transcript = match &run.conversation_key {
        Some(key) => run_messages
            .messages
            .iter()
            .map(|message| transcript_of(run, key, message))
            .collect(),
        None => Vec::new(),
    };
    RunEnd {
        status,
        reason,
        output: output_of(&run_messages),
        error: (error != Value::Null).then(|| error.to_string()),
        usage: buffer.usage(),
        metadata: metadata.to_string(),
        transcript,
        promotion: None,
    }
}

/// The last message, with the number of messages if there are several.
fn output_of(messages: &RunMessages) -> Option<String> {
    let last = messages.last()?;
    // The usual output stays a plain message.
    if messages.count < 2 {
        return Some(canonical_json(last));
    }
    let mut output = serde_json::to_value(last).expect("a message serialises to JSON");
    output["message_count"] = messages.count.into();
    Some(canonical_json(&output))
}

fn transcript_of(run: &Run, conversation_key: &str, message: &Message) -> TranscriptWrite {
    let text = message.plain_text();
    let content = (!text.is_empty()).then(|| transcript_text(&text));
    TranscriptWrite {
        id: Uuid::now_v7(),
        conversation_key: conversation_key.to_owned(),
        event_id: run.event_id.clone(),
        role: if message.role == "tool" {
            "tool"
        } else {
            "assistant"
        },
        terms: terms_of(conversation_key, content.as_deref()),
        content,
        content_json: canonical_json(message),
        attachment_refs: "[]".to_owned(),
        author: None,
    }
}
