//! Converts the content parts of an item to parts of a chat message.

use protocol::admin::Fault;
use serde_json::{Value, json};

/// One part of a chat message.
#[derive(Debug)]
pub(super) enum ContentPart {
    Text(String),
    /// An image, document or audio part.
    Data(Value),
}

/// Allowed content of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllowedContent {
    /// Text only: assistant messages and instructions.
    Text,
    /// Text, images, documents and audio.
    Any,
}

/// Returns the parts of an item's content, each with its pointer.
pub(super) fn read_parts(
    content: &Value,
    pointer: &str,
    may: AllowedContent,
) -> Result<Vec<(ContentPart, String)>, Fault> {
    match content {
        Value::String(text) => Ok(vec![(ContentPart::Text(text.clone()), pointer.to_owned())]),
        Value::Array(parts) => {
            let read = |(n, part): (usize, &Value)| {
                let pointer = format!("{pointer}/{n}");
                Ok((read_part(part, &pointer, may)?, pointer))
            };
            parts.iter().enumerate().map(read).collect()
        }
        _ => Err(Fault::new(pointer, "must be a text or a list of parts")),
    }
}

fn read_part(part: &Value, pointer: &str, may: AllowedContent) -> Result<ContentPart, Fault> {
    let kind = part["type"].as_str().unwrap_or_default();
    let at = |member: &str, message: &str| Fault::new(format!("{pointer}/{member}"), message);
    let text_of = |member: &str| {
        let text = part[member].as_str().map(str::to_owned);
        text.ok_or_else(|| at(member, "must be a text"))
    };
    match kind {
        "input_text" | "output_text" | "text" => Ok(ContentPart::Text(text_of("text")?)),
        "refusal" => Ok(ContentPart::Text(text_of("refusal")?)),
        "input_image" | "input_file" | "input_audio" if may == AllowedContent::Text => Err(at(
            "type",
            "must be a part of text: models take others only from users and tools",
        )),
        "input_image" | "input_file" if !part["file_id"].is_null() => Err(at(
            // The file belongs to the account of the operator, not to the run.
            "file_id",
            "is a file that the provider keeps, which is not the run's; send its data",
        )),
        "input_image" => {
            let mut image = json!({"url": text_of("image_url")?});
            match part["detail"].as_str() {
                Some(detail @ ("low" | "high")) => image["detail"] = json!(detail),
                // Completions have two levels of detail.
                Some("original") => image["detail"] = json!("high"),
                _ => {}
            }
            Ok(ContentPart::Data(
                json!({"type": "image_url", "image_url": image}),
            ))
        }
        "input_file" => {
            let is_inline = !part["file_data"].is_null();
            // Data wins over a URL, which not all providers can fetch.
            let data = text_of(if is_inline { "file_data" } else { "file_url" })?;
            let name = part["filename"].as_str().unwrap_or("file");
            Ok(ContentPart::Data(
                json!({"type": "file", "file": {"filename": name, "file_data": data}}),
            ))
        }
        "input_audio" if part["input_audio"].is_object() => Ok(ContentPart::Data(
            json!({"type": "input_audio", "input_audio": part["input_audio"]}),
        )),
        _ => Err(at(
            "type",
            "must be input_text, output_text, refusal, input_image, input_file or input_audio",
        )),
    }
}

/// Returns the text of the parts.
pub(super) fn text_of(parts: &[(ContentPart, String)]) -> String {
    let texts = parts.iter().filter_map(|(part, _)| match part {
        ContentPart::Text(text) => Some(text.as_str()),
        ContentPart::Data(_) => None,
    });
    // A line break keeps words of two parts separate.
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_text_images_and_files() {
        for (part, expected) in [
            (
                json!({"type": "input_image", "image_url": "artifact:a", "detail": "original"}),
                json!({"type": "image_url", "image_url": {"url": "artifact:a", "detail": "high"}}),
            ),
            (
                json!({"type": "input_image", "image_url": "https://a/b.png", "detail": "auto", "file_id": null}),
                json!({"type": "image_url", "image_url": {"url": "https://a/b.png"}}),
            ),
            (
                json!({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}),
                json!({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}}),
            ),
            (
                json!({"type": "input_file", "file_url": "https://a/b.pdf"}),
                json!({"type": "file", "file": {"filename": "file", "file_data": "https://a/b.pdf"}}),
            ),
        ] {
            let read = read_parts(&json!([part]), "/p", AllowedContent::Any).unwrap();
            let (ContentPart::Data(data), pointer) = &read[0] else {
                panic!("{read:?}")
            };
            assert_eq!((data, pointer.as_str()), (&expected, "/p/0"));
        }
    }

    #[test]
    fn reports_untranslatable_parts_by_pointer() {
        for (content, may, pointer) in [
            (json!(7), AllowedContent::Any, "/p"),
            (
                json!([{"type": "input_text"}]),
                AllowedContent::Any,
                "/p/0/text",
            ),
            (
                json!([{"type": "text", "text": "a"}, {"type": "video"}]),
                AllowedContent::Any,
                "/p/1/type",
            ),
            (
                json!([{"type": "input_image", "file_id": "f-1"}]),
                AllowedContent::Any,
                "/p/0/file_id",
            ),
            (
                json!([{"type": "input_image"}]),
                AllowedContent::Any,
                "/p/0/image_url",
            ),
            (
                json!([{"type": "input_file"}]),
                AllowedContent::Any,
                "/p/0/file_url",
            ),
            (
                json!([{"type": "input_audio"}]),
                AllowedContent::Any,
                "/p/0/type",
            ),
            (
                json!([{"type": "input_image", "image_url": "x"}]),
                AllowedContent::Text,
                "/p/0/type",
            ),
            (json!(["text"]), AllowedContent::Any, "/p/0/type"),
        ] {
            let refused = read_parts(&content, "/p", may).unwrap_err();
            assert_eq!(refused.pointer, pointer, "{content}");
        }
    }
}
