//! The messages of a request as the input of one event.

use protocol::admin::Fault;
use protocol::context::{AgentInput, InputAttachment};
use protocol::message::{ContentElement, ImageUrl};

use crate::questions::AnswerOutput;

/// Maximum bytes of earlier messages in an event; the newest stay.
const EARLIER_BYTES: usize = 64 * 1024;
/// Maximum characters of a media type.
const MEDIA_TYPE_CHARS: usize = 128;
/// Maximum parts of one event.
const MAX_PARTS: usize = 1000;

/// The last turn of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum RequestTurn {
    Message(LastUserMessage),
    /// At least one.
    Answers(Vec<AnswerOutput>),
}

/// The last messages of the user, and the messages before them.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct LastUserMessage {
    parts: Vec<ContentElement>,
    attachments: Vec<InputAttachment>,
    earlier: Vec<String>,
}

/// Parts of one message.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct MessageParts {
    pub(crate) contents: Vec<ContentElement>,
    pub(crate) attachments: Vec<InputAttachment>,
}

impl From<String> for MessageParts {
    fn from(text: String) -> Self {
        Self {
            contents: vec![ContentElement::text(text)],
            attachments: Vec::new(),
        }
    }
}

/// A file of a message.
pub(crate) struct FileOfMessage<'a> {
    pub(crate) source: FileOrigin<'a>,
    /// Parameters and malformed types are left out.
    pub(crate) media_type: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
}

/// Content of a file.
pub(crate) enum FileOrigin<'a> {
    Base64(&'a str),
    Url(&'a str),
}

impl From<FileOfMessage<'_>> for ContentElement {
    fn from(file: FileOfMessage<'_>) -> Self {
        let media_type = file.media_type.and_then(plain_media_type);
        let is_image = media_type.is_some_and(|kind| kind.starts_with("image/"));
        let mut element = Self {
            file_name: file.name.map(str::to_owned),
            ..Self::default()
        };
        let kind = match (file.source, is_image) {
            (FileOrigin::Base64(base64), _) => {
                // The same form as of other faces, so that large files become artifacts.
                let base64 = media_type.map_or_else(
                    || base64.to_owned(),
                    |kind| format!("data:{kind};base64,{base64}"),
                );
                if is_image {
                    element.image_base64 = Some(base64);
                    "image_base64"
                } else {
                    element.file_base64 = Some(base64);
                    "file_base64"
                }
            }
            (FileOrigin::Url(url), true) => {
                let url = url.to_owned();
                element.image_url = Some(ImageUrl { url });
                "image_url"
            }
            (FileOrigin::Url(url), false) => {
                element.file_url = Some(url.to_owned());
                "file_url"
            }
        };
        kind.clone_into(&mut element.kind);
        element
    }
}

/// The media type without parameters; `None` if it does not fit into a `data:` URL.
fn plain_media_type(media_type: &str) -> Option<&str> {
    let kind = media_type.split(';').next()?.trim();
    let is_plain = kind
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b',');
    (is_plain && !kind.is_empty() && kind.len() <= MEDIA_TYPE_CHARS).then_some(kind)
}

impl MessageParts {
    /// The text without the files.
    pub(crate) fn text(&self) -> String {
        text_of(&self.contents)
    }
}

/// Reads the messages of a request in order.
#[derive(Debug, Default)]
pub(crate) struct TurnReader {
    instructions: Vec<String>,
    message: LastUserMessage,
    answers: Vec<AnswerOutput>,
}

impl TurnReader {
    pub(crate) fn add_instructions(&mut self, text: String) {
        self.instructions.push(text);
    }

    pub(crate) fn add_assistant(&mut self, text: &str) {
        self.close();
        if !text.is_empty() {
            self.message.earlier.push(format!("assistant: {text}"));
        }
    }

    pub(crate) fn add_user(&mut self, parts: MessageParts) {
        // A message after an answer means that an earlier request gave it.
        self.answers.clear();
        self.message.parts.extend(parts.contents);
        self.message.attachments.extend(parts.attachments);
    }

    pub(crate) fn add_answer(&mut self, answer: AnswerOutput) {
        self.close();
        self.answers.push(answer);
    }

    /// Moves the messages of the user to the earlier ones.
    fn close(&mut self) {
        let text = text_of(&self.message.parts);
        // Files of earlier turns are left out: the model saw them then.
        if !text.is_empty() {
            self.message.earlier.push(format!("user: {text}"));
        }
        self.message.parts.clear();
        self.message.attachments.clear();
    }

    /// The instructions and the last turn. `pointer`: the member with the messages.
    pub(crate) fn finish(self, pointer: &str) -> Result<(String, RequestTurn), Fault> {
        let instructions = self.instructions.join("\n\n");
        let message = self.message;
        if !self.answers.is_empty() {
            // Answers come first: text beside them belongs to earlier turns.
            return Ok((instructions, RequestTurn::Answers(self.answers)));
        }
        if message.parts.is_empty() && message.attachments.is_empty() {
            let fault = "must end with a message of the user; it becomes the event of the run";
            return Err(Fault::new(pointer, fault));
        }
        if message.parts.len() > MAX_PARTS {
            let fault = format!("must end with at most {MAX_PARTS} parts of the user");
            return Err(Fault::new(pointer, fault));
        }
        Ok((instructions, RequestTurn::Message(message)))
    }
}

impl LastUserMessage {
    /// The input of an event in a conversation: the gateway has the earlier messages.
    pub(crate) fn in_conversation(self) -> AgentInput {
        let text = text_of(&self.parts);
        let is_text = matches!(self.parts.as_slice(), [only] if only.kind == "text");
        AgentInput {
            text: (!text.is_empty()).then_some(text),
            // The gateway fills the contents from the text.
            contents: if is_text { Vec::new() } else { self.parts },
            attachments: self.attachments,
            interaction: None,
        }
    }

    /// The input of an event without a conversation: the earlier messages are its first part.
    pub(crate) fn with_earlier(mut self) -> AgentInput {
        let mut earlier = std::mem::take(&mut self.earlier);
        let mut bytes = 0;
        let first = earlier.iter().rposition(|text| {
            bytes += text.len() + 2;
            bytes > EARLIER_BYTES
        });
        // From the front: the newest messages matter most.
        earlier.drain(..first.map_or(0, |first| first + 1));
        if earlier.is_empty() {
            return self.in_conversation();
        }
        let text = text_of(&self.parts);
        let before = format!(
            "Earlier messages of this conversation:\n\n{}",
            earlier.join("\n\n")
        );
        // A part of its own, so that `text` stays what the user wrote now.
        self.parts.insert(0, ContentElement::text(before));
        AgentInput {
            text: (!text.is_empty()).then_some(text),
            ..self.in_conversation()
        }
    }
}

fn text_of(parts: &[ContentElement]) -> String {
    let texts: Vec<_> = parts
        .iter()
        .filter_map(|part| part.text.as_deref())
        .collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> MessageParts {
        text.to_owned().into()
    }

    fn message(reader: TurnReader) -> LastUserMessage {
        match reader.finish("/messages").unwrap().1 {
            RequestTurn::Message(message) => message,
            RequestTurn::Answers(answers) => panic!("{answers:?}"),
        }
    }

    fn chat() -> TurnReader {
        let mut reader = TurnReader::default();
        reader.add_instructions("be kind".to_owned());
        reader.add_user(text("hi"));
        reader.add_assistant("hello");
        reader.add_user(text("how"));
        reader.add_user(text("are you?"));
        reader
    }

    #[test]
    fn last_user_messages_become_the_input() {
        let input = message(chat()).in_conversation();
        assert_eq!(input.text.as_deref(), Some("how\nare you?"));
        assert_eq!(input.contents.len(), 2);
        let mut reader = TurnReader::default();
        reader.add_user(text("hi"));
        let input = message(reader).with_earlier();
        assert_eq!(input.text.as_deref(), Some("hi"));
        assert!(input.contents.is_empty());
    }

    #[test]
    fn earlier_messages_precede_without_conversation() {
        let input = message(chat()).with_earlier();
        assert_eq!(input.text.as_deref(), Some("how\nare you?"));
        let first = input.contents[0].text.as_deref().unwrap();
        assert!(
            first.ends_with("\n\nuser: hi\n\nassistant: hello"),
            "{first}"
        );
        assert_eq!(input.contents.len(), 3);
    }

    #[test]
    fn oldest_messages_are_left_out_first() {
        let mut reader = TurnReader::default();
        for number in 0..100 {
            reader.add_user(text(&format!("{number} {}", "x".repeat(1024))));
            reader.add_assistant("yes");
        }
        reader.add_user(text("last"));
        let input = message(reader).with_earlier();
        let first = input.contents[0].text.as_deref().unwrap();
        assert!(first.len() <= EARLIER_BYTES + 64, "{}", first.len());
        assert!(first.contains("user: 99 ") && !first.contains("user: 9 "));
    }

    #[test]
    fn requests_end_with_messages_or_answers() {
        let mut reader = chat();
        reader.add_assistant("fine");
        assert_eq!(reader.finish("/messages").unwrap_err().pointer, "/messages");
        let answer = || AnswerOutput::read("q".to_owned(), r#"{"action_id": "a"}"#, "").unwrap();
        let mut reader = chat();
        reader.add_answer(answer());
        let (_, turn) = reader.finish("/messages").unwrap();
        assert_eq!(turn, RequestTurn::Answers(vec![answer()]));
        let mut reader = chat();
        reader.add_answer(answer());
        reader.add_user(text("next"));
        let input = message(reader).in_conversation();
        assert_eq!(input.text.as_deref(), Some("next"));
    }
}
