//! Any text is parsed or rejected as a transcript. Any content survives rendering and parsing.

use action_graph::transcript::{Attachment, Notice, TranscriptTurn, parse, render};

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(turns) = parse(text) {
        let again = render(&turns);
        assert!(
            again.len() <= 8 * text.len() + 64,
            "{} of {}",
            again.len(),
            text.len()
        );
        super::check_turns(&turns);
    }
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
