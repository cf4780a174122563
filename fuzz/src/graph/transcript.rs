//! No content of a turn ends it or begins another one.

use action_graph::transcript::{Attachment, Notice, TranscriptTurn};

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let text = text.to_owned();
    super::check_turns(&[
        TranscriptTurn::User {
            text: text.clone(),
            attachments: vec![Attachment {
                name: text.clone(),
                kind: text.clone(),
                size: 1,
                reference: text.clone(),
            }],
        },
        TranscriptTurn::Answer { text: text.clone() },
        TranscriptTurn::Notice(Notice {
            sentence: text.clone(),
            lines: vec![("bad_id".to_owned(), "/calls".to_owned(), text)],
        }),
    ]);
}
