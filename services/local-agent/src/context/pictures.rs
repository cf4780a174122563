//! Pictures that are artifacts of the gateway. The gateway inserts them into model requests where the run may
//! read them; a request with an unreadable reference is rejected.

use protocol::context::{AgentRunContext, InputAttachment};
use protocol::history::TranscriptItem;
use protocol::message::{ContentElement, Message, MessageContent};

use crate::context::estimate::is_attachment;
use crate::dates;

/// URL scheme before the artifact id.
const SCHEME: &str = "artifact:";
/// Longer URLs are left out of descriptions.
const MAX_URL_BYTES: usize = 500;
/// Assumed size of a picture without one: the gateway lists larger ones with their size.
const UNKNOWN_BYTES: u64 = 64 * 1024;

/// Current user message, with pictures that the run may read.
pub fn of_now(mut message: Message, context: &AgentRunContext) -> Message {
    if !context.context.available_apis.artifact_read {
        for part in parts_of(&mut message) {
            if artifact_of(part).is_none() {
                continue;
            }
            // The part has the bytes, so only the unreadable reference goes.
            if part.image_base64.is_some() {
                part.image_url = None;
            } else {
                *part = ContentElement::text(note(part, None));
            }
        }
    }
    message
}

/// Picture of the history.
pub struct PastPicture<'a> {
    /// File name, if the transcript has one.
    pub name: Option<&'a str>,
    /// Bytes; an estimate where the transcript has none.
    pub bytes: u64,
}

/// Earlier message: `is_shown` selects the pictures that the model sees again, and is called for the last picture
/// first. All others become descriptions with name and time (epoch seconds).
pub fn of_past(
    message: &mut Message,
    item: &TranscriptItem,
    mut is_shown: impl FnMut(&PastPicture<'_>) -> bool,
) {
    let of_user = message.role == "user";
    let attachments: Vec<InputAttachment> = item
        .attachment_refs
        .iter()
        .filter_map(|attachment| serde_json::from_str(attachment.get()).ok())
        .collect();
    // Last first: the caller's limits go to the newest pictures.
    for part in parts_of(message).iter_mut().rev() {
        if !part.kind.starts_with("image") {
            continue;
        }
        let attachment = attachments.iter().find(|attachment| {
            artifact_of(part).is_some() && attachment.url.as_deref() == artifact_of(part)
        });
        let name = part.file_name.as_deref();
        let picture = PastPicture {
            name: name.or(attachment.and_then(|one| one.name.as_deref())),
            bytes: inline_bytes(part)
                .or(attachment.and_then(|one| u64::try_from(one.size?).ok()))
                .unwrap_or(UNKNOWN_BYTES),
        };
        let has_source = part.image_url.is_some() || part.image_base64.is_some();
        // Pictures of tools and of the model itself are not sent again.
        if !(of_user && has_source && is_shown(&picture)) {
            let time = Some(dates::minute(item.created_at));
            *part = ContentElement::text(note_of("picture", picture.name, time.as_deref()));
        }
    }
}

fn parts_of(message: &mut Message) -> &mut [ContentElement] {
    match &mut message.content {
        Some(MessageContent::Parts(parts)) => parts,
        _ => &mut [],
    }
}

fn artifact_of(part: &ContentElement) -> Option<&str> {
    let url = part.image_url.as_ref().map(|image| image.url.as_str());
    url.filter(|url| url.starts_with(SCHEME))
}

/// Size of a picture that the part itself contains.
fn inline_bytes(part: &ContentElement) -> Option<u64> {
    let url = part.image_url.as_ref().map(|image| image.url.as_str());
    let data = url.filter(|url| url.starts_with("data:"));
    let base64 = data.or(part.image_base64.as_deref())?;
    Some(base64.len() as u64 / 4 * 3)
}

/// Replaces all pictures and files by descriptions; false when there are none.
pub fn describe_all(message: &mut Message) -> bool {
    let mut found = false;
    if let Some(MessageContent::Parts(parts)) = &mut message.content {
        for part in parts.iter_mut().filter(|part| is_attachment(part)) {
            *part = ContentElement::text(note(part, None));
            found = true;
        }
    }
    found
}

fn note(part: &ContentElement, time: Option<&str>) -> String {
    let name = part.file_name.as_deref();
    let url = part.image_url.as_ref().map(|image| image.url.as_str());
    let kind = if part.file_url.is_some() || part.file_base64.is_some() {
        "file"
    } else {
        "picture"
    };
    let url = url.or(part.file_url.as_deref()).filter(|url| is_short(url));
    note_of(kind, name.or(url), time)
}

fn note_of(kind: &str, name: Option<&str>, time: Option<&str>) -> String {
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    let time = time
        .map(|time| format!(" of {time} UTC"))
        .unwrap_or_default();
    format!("[{kind}{name}{time}: not shown]")
}

/// False for data URLs and other long values.
fn is_short(url: &str) -> bool {
    url.len() <= MAX_URL_BYTES && !url.starts_with("data:")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn describes_every_non_text_part() {
        let parts = json!([{"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_base64", "image_base64": "AAAA"},
            {"type": "file_base64", "file_base64": "AAAA", "file_name": "a.pdf"},
            {"type": "file_url", "file_url": "https://a.b/d.pdf"}]);
        let message = json!({"role": "user", "content": parts});
        let mut message: Message = serde_json::from_value(message).unwrap();
        assert!(describe_all(&mut message));
        let texts = [
            "see",
            "[picture https://a.b/c.png: not shown]",
            "[picture: not shown]",
            "[picture: not shown]",
            "[file a.pdf: not shown]",
            "[file https://a.b/d.pdf: not shown]",
        ];
        let texts: Vec<_> = texts
            .map(|text| json!({"type": "text", "text": text}))
            .into();
        assert_eq!(
            serde_json::to_value(&message).unwrap()["content"],
            json!(texts)
        );
        assert!(!describe_all(&mut message));
    }

    #[test]
    fn shows_selected_pictures_of_the_past() {
        let item = json!({
            "transcript_id": "t", "event_id": "e", "conversation_id": "c", "role": "user", "item_type": "message",
            "seq": 1, "cursor": "1", "created_at": 951_782_400, "metadata": {},
            "attachment_refs": [{"url": "artifact:a", "name": "cat.png", "size": 70_000}],
        });
        let item: TranscriptItem = serde_json::from_value(item).unwrap();
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let parts = json!([{"type": "text", "text": "artifact:a"}, image("artifact:a"), image("artifact:b"),
            image("data:image/png;base64,AAAA"), image("https://a.b/c.png"), {"type": "image_base64"}]);
        for (role, shown) in [("user", true), ("user", false), ("assistant", true)] {
            let message = json!({"role": role, "content": parts});
            let mut message: Message = serde_json::from_value(message).unwrap();
            let mut sizes = Vec::new();
            of_past(&mut message, &item, |picture| {
                sizes.push(picture.bytes);
                shown
            });
            let content = serde_json::to_value(&message).unwrap()["content"].clone();
            let note = |name: &str| json!({"type": "text", "text": format!("[picture{name} of 2000-02-29 00:00 UTC: not shown]")});
            let expected = if role == "user" && shown {
                json!([parts[0], parts[1], parts[2], parts[3], parts[4], note("")])
            } else {
                json!([
                    parts[0],
                    note(" cat.png"),
                    note(""),
                    note(""),
                    note(""),
                    note("")
                ])
            };
            assert_eq!(content, expected, "{role} {shown}");
            if role == "user" {
                assert_eq!(sizes, [UNKNOWN_BYTES, 18, UNKNOWN_BYTES, 70_000]);
            }
        }
    }
}
