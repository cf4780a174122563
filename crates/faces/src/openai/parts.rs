//! Content of messages: texts, images, files and audio, in the form of chat completions and of responses.

use protocol::admin::Fault;
use protocol::context::InputAttachment;
use protocol::message::{ContentElement, ImageUrl};
use serde_json::Value;

use crate::input::MessageParts;

/// Reads the content of a message at `pointer`.
pub(super) fn read_content(content: &Value, pointer: &str) -> Result<MessageParts, Fault> {
    let mut parts = MessageParts::default();
    match content {
        // Assistants with tool calls have no content.
        Value::Null => {}
        Value::String(text) => parts.contents.push(ContentElement::text(text)),
        Value::Array(list) => {
            for (at, part) in list.iter().enumerate() {
                read_part(part, &format!("{pointer}/{at}"), &mut parts)?;
            }
        }
        _ => return Err(Fault::new(pointer, "must be a text or a list of parts")),
    }
    Ok(parts)
}

fn read_part(part: &Value, pointer: &str, parts: &mut MessageParts) -> Result<(), Fault> {
    let text = |name: &str| {
        let text = part[name].as_str().map(ContentElement::text);
        text.ok_or_else(|| Fault::new(format!("{pointer}/{name}"), "must be a text"))
    };
    let element = match part["type"].as_str().unwrap_or_default() {
        "text" | "input_text" | "output_text" => text("text")?,
        "refusal" => text("refusal")?,
        "image_url" => image(
            &part["image_url"]["url"],
            &format!("{pointer}/image_url/url"),
        )?,
        // An upload is an attachment, so that the event binds it.
        "input_image" if part["file_id"].is_string() => {
            return upload(&part["file_id"], pointer, parts);
        }
        "input_image" => image(&part["image_url"], &format!("{pointer}/image_url"))?,
        "file" => return file(&part["file"], &format!("{pointer}/file"), parts),
        "input_file" => return file(part, pointer, parts),
        "input_audio" => audio(&part["input_audio"], &format!("{pointer}/input_audio"))?,
        _ => {
            let message = "must be the type of a text, an image, a file or audio";
            return Err(Fault::new(format!("{pointer}/type"), message));
        }
    };
    parts.contents.push(element);
    Ok(())
}

fn image(url: &Value, pointer: &str) -> Result<ContentElement, Fault> {
    let url = url.as_str().map(str::to_owned);
    let url = url.ok_or_else(|| {
        Fault::new(
            pointer,
            "must be a URL, also of the form data: or artifact:",
        )
    })?;
    Ok(ContentElement {
        kind: "image_url".to_owned(),
        image_url: Some(ImageUrl { url }),
        ..ContentElement::default()
    })
}

fn file(file: &Value, pointer: &str, parts: &mut MessageParts) -> Result<(), Fault> {
    let text = |name: &str| file[name].as_str().map(str::to_owned);
    if file["file_id"].is_string() {
        return upload(&file["file_id"], pointer, parts);
    }
    let (data, url) = (text("file_data"), text("file_url"));
    let kind = match (&data, &url) {
        (Some(_), _) => "file_base64",
        (None, Some(_)) => "file_url",
        (None, None) => {
            let message = "must have file_data, or the id of an uploaded artifact as file_id";
            return Err(Fault::new(pointer, message));
        }
    };
    parts.contents.push(ContentElement {
        kind: kind.to_owned(),
        file_url: url.filter(|_| data.is_none()),
        file_base64: data,
        file_name: text("filename"),
        ..ContentElement::default()
    });
    Ok(())
}

/// An artifact that the client has uploaded.
fn upload(id: &Value, pointer: &str, parts: &mut MessageParts) -> Result<(), Fault> {
    let id = id.as_str().map(str::to_owned);
    let id = id.ok_or_else(|| {
        Fault::new(
            format!("{pointer}/file_id"),
            "must be the id of an artifact",
        )
    })?;
    parts.attachments.push(InputAttachment {
        id: Some(id),
        ..InputAttachment::default()
    });
    Ok(())
}

fn audio(audio: &Value, pointer: &str) -> Result<ContentElement, Fault> {
    let data = audio["data"].as_str().map(str::to_owned);
    let data = data.ok_or_else(|| Fault::new(format!("{pointer}/data"), "must be base64"))?;
    // The name tells the runner the format, since base64 has none.
    let format = audio["format"].as_str().unwrap_or("wav");
    Ok(ContentElement {
        kind: "file_base64".to_owned(),
        file_base64: Some(data),
        file_name: Some(format!("audio.{format}")),
        ..ContentElement::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_parts_of_both_apis() {
        let content = json!([
            {"type": "text", "text": "a"}, {"type": "input_text", "text": "b"},
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            {"type": "file", "file": {"filename": "f.pdf", "file_data": "AAAA"}},
            {"type": "input_file", "file_url": "https://x/f.pdf"},
            {"type": "input_file", "file_id": "01a2"},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        ]);
        let parts = read_content(&content, "/messages/0/content").unwrap();
        assert_eq!(parts.text(), "a\nb");
        let read = serde_json::to_value(&parts.contents[2..]).unwrap();
        let expected = json!([
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "file_base64", "file_base64": "AAAA", "file_name": "f.pdf"},
            {"type": "file_url", "file_url": "https://x/f.pdf"},
            {"type": "file_base64", "file_base64": "AAAA", "file_name": "audio.mp3"},
        ]);
        assert_eq!(read, expected);
        assert_eq!(parts.attachments[0].id.as_deref(), Some("01a2"));
    }

    #[test]
    fn faults_point_to_the_part() {
        for (part, pointer) in [
            (json!({"type": "text"}), "/c/0/text"),
            (json!({"type": "image_url"}), "/c/0/image_url/url"),
            (json!({"type": "input_file"}), "/c/0"),
            (json!({"type": "video"}), "/c/0/type"),
        ] {
            let fault = read_content(&json!([part]), "/c").unwrap_err();
            assert_eq!(fault.pointer, pointer);
        }
    }
}
