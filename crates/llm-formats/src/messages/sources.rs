//! Sources of images and documents at all positions of a request.

use protocol::JsonObject;
use serde_json::Value;

/// Source of the bytes of an image or document.
#[derive(Debug)]
pub struct MediaSource<'a> {
    /// Pointer of the source, from the body.
    pub pointer: String,
    pub is_image: bool,
    /// Members with `type` `base64`, `text` or `url`.
    pub members: &'a mut JsonObject,
}

impl MediaSource<'_> {
    /// Returns the URL of a source of type `url`.
    pub fn url(&self) -> Option<&str> {
        let is_url = self.members.get("type").is_some_and(|kind| kind == "url");
        let url = self.members.get("url").filter(|_| is_url);
        url.and_then(Value::as_str)
    }

    /// Replaces the URL by the bytes of a data URL. Other URLs stay.
    pub fn inline(&mut self, url: &str) {
        let data = url.strip_prefix("data:");
        // Other URLs are the provider's to fetch.
        let Some((media_type, data)) = data.and_then(|data| data.split_once(";base64,")) else {
            return;
        };
        // The provider rejects a source with members of two types.
        self.members.remove("url");
        for (name, value) in [
            ("type", "base64"),
            ("media_type", media_type),
            ("data", data),
        ] {
            self.members.insert(name.to_owned(), value.into());
        }
    }
}

/// Returns all sources of a validated request in order.
pub fn sources(body: &mut JsonObject) -> Vec<MediaSource<'_>> {
    let mut found = Vec::new();
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    for (n, message) in messages.into_iter().flatten().enumerate() {
        if let Some(content) = message.get_mut("content") {
            collect(content, &format!("/messages/{n}/content"), &mut found);
        }
    }
    found
}

/// Collects the sources of blocks. Blocks nest at most twice: a document of blocks in a tool result.
fn collect<'a>(content: &'a mut Value, pointer: &str, found: &mut Vec<MediaSource<'a>>) {
    for (n, block) in content.as_array_mut().into_iter().flatten().enumerate() {
        let kind = block.get("type").and_then(Value::as_str);
        let (is_image, is_document) = (kind == Some("image"), kind == Some("document"));
        // Only these blocks contain blocks; `content` of others is not validated.
        let has_content = matches!(kind, Some("tool_result" | "search_result"));
        let Some(members) = block.as_object_mut() else {
            continue;
        };
        for (name, value) in members {
            match (name.as_str(), value) {
                ("content", content) if has_content => {
                    collect(content, &format!("{pointer}/{n}/content"), found);
                }
                ("source", Value::Object(source)) if is_image || is_document => {
                    let pointer = format!("{pointer}/{n}/source");
                    // A document of blocks has sources of its own.
                    if source.get("type").is_some_and(|kind| kind == "content") {
                        if let Some(content) = source.get_mut("content") {
                            collect(content, &format!("{pointer}/content"), found);
                        }
                    } else {
                        found.push(MediaSource {
                            pointer,
                            is_image,
                            members: source,
                        });
                    }
                }
                _ => {}
            }
        }
    }
}

/// Returns true if the token count of a validated request has no bound from its size. This applies to documents
/// by URL, and to data other than images and text.
pub fn has_document(body: &mut JsonObject) -> bool {
    /// Start of a PDF in base64.
    const PDF: &str = "JVBERi";
    sources(body).iter().any(|source| {
        let text = |name: &str| source.members.get(name).and_then(Value::as_str);
        let media_type = text("media_type").unwrap_or_default().to_ascii_lowercase();
        let data = text("data").unwrap_or_default().trim_start();
        // Both checks, since clients may declare a wrong media type.
        let is_pdf = data.starts_with(PDF) || media_type.contains("pdf");
        match text("type") {
            Some("base64") if source.is_image => is_pdf || !media_type.starts_with("image/"),
            Some("base64") => is_pdf || !media_type.starts_with("text/"),
            Some("text") => false,
            // A URL has an unknown size; an image costs a fixed maximum.
            _ => !source.is_image,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(blocks: &Value) -> JsonObject {
        let body = json!({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": blocks}]});
        body.as_object().unwrap().clone()
    }

    #[test]
    fn finds_sources_in_results_and_documents() {
        let url = |url: &str| json!({"type": "url", "url": url});
        let mut body = body(&json!([
            {"type": "text", "text": "source"},
            {"type": "image", "source": url("artifact:a")},
            {"type": "tool_result", "content": [{"type": "image", "source": url("https://b")}]},
            {"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": url("c")}]}},
            {"type": "tool_use", "input": {"type": "image", "source": url("d")}},
        ]));
        let found = sources(&mut body).into_iter();
        let found: Vec<_> = found
            .map(|source| (source.pointer.clone(), source.url().unwrap().to_owned()))
            .collect();
        let expected = [
            ("/messages/1/content/1/source", "artifact:a"),
            ("/messages/1/content/2/content/0/source", "https://b"),
            ("/messages/1/content/3/source/content/0/source", "c"),
        ];
        assert_eq!(
            found,
            expected.map(|(at, url)| (at.to_owned(), url.to_owned()))
        );
        sources(&mut body)[0].inline("data:image/png;base64,AA==");
        let inlined = json!({"type": "base64", "media_type": "image/png", "data": "AA=="});
        assert_eq!(body["messages"][1]["content"][1]["source"], inlined);
    }

    #[test]
    fn distinguishes_documents_from_images_and_text() {
        let base64 = |media_type: &str, data: &str| json!({"type": "base64", "media_type": media_type, "data": data});
        for (kind, source, expected) in [
            ("image", base64("image/png", "AA"), false),
            ("image", base64("image/png", "JVBERi0"), true),
            ("image", base64("video/mp4", "AA"), true),
            (
                "image",
                json!({"type": "url", "url": "https://a.b/c.png"}),
                false,
            ),
            ("document", base64("application/pdf", "AA"), true),
            ("document", base64("text/plain", "AA"), false),
            (
                "document",
                json!({"type": "text", "media_type": "text/plain", "data": "AA"}),
                false,
            ),
            (
                "document",
                json!({"type": "url", "url": "https://a.b/c"}),
                true,
            ),
        ] {
            let mut body = body(&json!([{"type": kind, "source": source}]));
            assert_eq!(has_document(&mut body), expected, "{source}");
        }
    }
}
