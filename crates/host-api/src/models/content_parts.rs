//! Images and files in messages, inline or by URL.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use egress::EgressError;

/// URL prefixes that cause no fetch.
const INLINE: [&str; 2] = ["data:", "artifact:"];
/// Length of the longest of these prefixes.
const INLINE_CHARS: usize = 9;
/// Schemes that URL parsers accept without slashes, as in `http:10.0.0.1`.
const SCHEMES: [&str; 6] = ["http", "https", "file", "ftp", "ws", "wss"];
/// Fields of a part with plain text, which is not fetched.
const PART_TEXT_FIELDS: [&str; 8] = [
    "text",
    "refusal",
    "thinking",
    "signature",
    "name",
    "filename",
    "title",
    "context",
];
/// Fields of a message that are plain text if they are strings.
const MESSAGE_TEXT_FIELDS: [&str; 6] = [
    "role",
    "name",
    "refusal",
    "reasoning",
    "reasoning_content",
    "tool_call_id",
];
/// Fields of a tool or tool call that the model reads or writes.
const CALL_TEXT_FIELDS: [&str; 6] = [
    "function",
    "custom",
    "name",
    "description",
    "parameters",
    "input_schema",
];
/// Those of `CALL_TEXT_FIELDS` whose complete value is model text.
const CALL_TEXT_OBJECTS: [&str; 4] = ["function", "custom", "parameters", "input_schema"];
/// An image URL, or an object with it.
const IMAGE: &str = "image_url";
/// Fields with the media type of adjacent data.
const TYPES: [&str; 4] = ["media_type", "mime_type", "mimeType", "format"];
/// Base64 prefix of a PDF, whatever its declared type.
const PDF: &str = "JVBERi";
/// Fields of a part with data. Base64 text may look like a URL without a scheme.
const DATA: [&str; 2] = ["data", "file_data"];
/// Field with the id of a file in the account of the operator.
const FILE_ID: &str = "file_id";

/// Rejects URLs that the egress rules forbid (SSRF), because a provider in the operator's network fetches from
/// inside it. Pointers are relative to the body.
pub(crate) fn check_urls(
    body: &JsonObject,
    may_fetch: impl Fn(&str) -> Result<(), EgressError>,
) -> Result<(), Fault> {
    walk(body, &|_, name, text| {
        // Files in the operator's account belong to no run, so an id could read those of another user.
        if name == FILE_ID {
            let message =
                "is a file that the provider keeps, which is not the run's; send its data";
            return Err(Fault::new("", message));
        }
        if !is_url(name, text) {
            return Ok(());
        }
        may_fetch(text).map_err(|error| {
            let message =
                format!("must be inline data, an artifact, or a URL that may be fetched: {error}");
            Fault::new("", message)
        })
    })
}

/// True if the body refers to content of unbounded token count: a document, video or audio by URL, by id, or as data
/// other than images and text. Citations (`annotations`) in earlier answers do not count, because providers do not
/// read them.
pub(crate) fn has_document(body: &JsonObject) -> bool {
    let found = walk(body, &|member, name, text| {
        if member != "annotations" && is_document(name, text) {
            return Err(Fault::new("", "is a document"));
        }
        Ok(())
    });
    found.is_err()
}

fn is_document(name: &str, text: &str) -> bool {
    let beginning: String = text.trim_start().chars().take(16).collect();
    let beginning = beginning.to_ascii_lowercase();
    if TYPES.contains(&name) {
        let is_type = beginning.contains('/');
        return is_type && !beginning.starts_with("image/") && !beginning.starts_with("text/");
    }
    let is_image = name == IMAGE;
    match beginning.strip_prefix("data:") {
        // The content decides, because a request could declare a PDF as an image.
        Some(_) if data_of_url(text).starts_with(PDF) => true,
        Some(kind) if kind.starts_with("image/") => false,
        // As an image it would be counted as one.
        Some(kind) if kind.starts_with("text/") => is_image,
        Some(_) => true,
        None if ["file_data", FILE_ID].contains(&name) => true,
        None if DATA.contains(&name) => text.trim_start().starts_with(PDF),
        // Tool results are text.
        None => !is_image && name != "content" && is_url(name, text),
    }
}

fn data_of_url(url: &str) -> &str {
    url.split_once(',')
        .map_or("", |(_, data)| data.trim_start())
}

/// Visits each string of messages and tools except plain text. Passes the message field that contains it and
/// its own field name.
fn walk(
    body: &JsonObject,
    visit: &impl Fn(&str, &str, &str) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let items = |name: &str| {
        body.get(name)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    for (n, message) in items("messages").enumerate() {
        walk_message(message, visit).map_err(|fault| under(&format!("/messages/{n}"), fault))?;
    }
    for (n, tool) in items("tools").enumerate() {
        let visit = |name: &str, text: &str| visit("", name, text);
        walk_members("", tool, &CALL_TEXT_FIELDS, &visit)
            .map_err(|fault| under(&format!("/tools/{n}"), fault))?;
    }
    Ok(())
}

fn walk_message(
    message: &Value,
    visit: &impl Fn(&str, &str, &str) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let Some(members) = message.as_object() else {
        return Ok(());
    };
    for (name, value) in members {
        let visit = |own: &str, text: &str| visit(name, own, text);
        let checked = match (name.as_str(), value) {
            ("content", Value::String(_)) => Ok(()),
            ("tool_calls", Value::Array(calls)) => {
                calls.iter().enumerate().try_for_each(|(n, call)| {
                    walk_members("", call, &CALL_TEXT_FIELDS, &visit)
                        .map_err(|fault| under(&format!("/{n}"), fault))
                })
            }
            (name, Value::String(_)) if MESSAGE_TEXT_FIELDS.contains(&name) => Ok(()),
            (name, value) => walk_part(name, value, &visit),
        };
        checked.map_err(|fault| under(&format!("/{name}"), fault))?;
    }
    Ok(())
}

/// Visits fields of an object outside `words`, and non-string values of fields in `words`. `of` is the field of
/// the object.
fn walk_members(
    of: &str,
    value: &Value,
    words: &[&str],
    visit: &impl Fn(&str, &str) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let members = value.as_object().into_iter().flatten();
    members
        .filter(|(name, value)| {
            let is_read = value.is_string() || CALL_TEXT_OBJECTS.contains(&name.as_str());
            !(is_read && words.contains(&name.as_str()))
        })
        .try_for_each(|(name, value)| {
            let effective_name = if of == IMAGE && name == "url" {
                of
            } else {
                name
            };
            walk_part(effective_name, value, visit)
                .map_err(|fault| under(&format!("/{name}"), fault))
        })
}

/// `name` is the field of the value, or of its list.
fn walk_part(
    name: &str,
    value: &Value,
    visit: &impl Fn(&str, &str) -> Result<(), Fault>,
) -> Result<(), Fault> {
    match value {
        Value::String(text) => visit(name, text),
        Value::Array(items) => items.iter().enumerate().try_for_each(|(n, item)| {
            walk_part(name, item, visit).map_err(|fault| under(&format!("/{n}"), fault))
        }),
        Value::Object(_) => walk_members(name, value, &PART_TEXT_FIELDS, visit),
        _ => Ok(()),
    }
}

fn is_url(name: &str, text: &str) -> bool {
    let beginning: String = text.trim_start().chars().take(INLINE_CHARS).collect();
    // Schemes are not case-sensitive.
    let beginning = beginning.to_ascii_lowercase();
    let is_inline = INLINE.iter().any(|scheme| beginning.starts_with(scheme));
    let is_named = name == "url" || name.ends_with("_url");
    // Base64 has no colon.
    let is_opaque = name == "file_data" && text.contains(':');
    !is_inline && (is_named || is_opaque || starts_like_url(text, !DATA.contains(&name)))
}

/// True if a text starts like a URL: `scheme:/`, a scheme of [`SCHEMES`] with a colon, or optionally `//`. One URL may
/// be within another, as in `view-source:http:`. Like URL parsers, this skips leading blanks, tabs and line ends, and
/// accepts backslashes.
fn starts_like_url(text: &str, may_lack_scheme: bool) -> bool {
    let read = text.chars().filter(|letter| !"\t\n\r".contains(*letter));
    let read = read.skip_while(|letter| *letter <= ' ');
    // Bounded, also for nested schemes: texts may be megabytes.
    let beginning: String = read
        .take(40)
        .map(|letter| if letter == '\\' { '/' } else { letter })
        .collect();
    let is_of_scheme = |letter: char| letter.is_ascii_alphanumeric() || "+.-".contains(letter);
    let rest = beginning.trim_start_matches(is_of_scheme);
    let scheme = &beginning[..beginning.len() - rest.len()];
    let is_fetched = SCHEMES
        .iter()
        .any(|fetched| scheme.eq_ignore_ascii_case(fetched));
    let has_slash = !scheme.is_empty() && rest.starts_with(":/");
    let nested = rest.strip_prefix(':').filter(|_| !scheme.is_empty());
    let is_nested = nested.is_some_and(|nested| starts_like_url(nested, false));
    has_slash
        || is_nested
        || (is_fetched && rest.starts_with(':'))
        || (may_lack_scheme && beginning.starts_with("//"))
}

fn under(pointer: &str, mut fault: Fault) -> Fault {
    fault.pointer.insert_str(0, pointer);
    fault
}

/// Content that is not counted as text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NonTextContent {
    pub(crate) images: u64,
    /// Bytes of files in their encoded form.
    pub(crate) file_bytes: u64,
}

/// Runs `inspect` on the body without the data of images and files, and returns counts of that data.
pub(crate) fn without_data<T>(
    body: &mut JsonObject,
    inspect: impl FnOnce(&JsonObject) -> T,
) -> (T, NonTextContent) {
    let mut non_text = NonTextContent::default();
    let mut taken = Vec::new();
    for (kind, data) in data_of(body) {
        // A text that is no inline data stays: as a URL it is counted as text.
        let is_inline = INLINE.iter().any(|scheme| data.starts_with(scheme));
        match kind {
            InlineDataKind::Image => non_text.images += 1,
            InlineDataKind::File => non_text.file_bytes += data.len() as u64,
        }
        let takes = is_inline || matches!(kind, InlineDataKind::File);
        taken.push(takes.then(|| std::mem::take(data)));
    }
    let result = inspect(body);
    // The order is that of the first pass: `inspect` gets a shared reference.
    for ((_, data), taken) in data_of(body).into_iter().zip(taken) {
        if let Some(taken) = taken {
            *data = taken;
        }
    }
    (result, non_text)
}

#[derive(Clone, Copy)]
enum InlineDataKind {
    Image,
    File,
}

/// Data of images and files in the messages, in order.
fn data_of(body: &mut JsonObject) -> Vec<(InlineDataKind, &mut String)> {
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    let contents = messages
        .into_iter()
        .flatten()
        .filter_map(|message| message.get_mut("content")?.as_array_mut());
    let data = contents.flatten().filter_map(|part| {
        let (kind, holder, data) = if part.get("image_url").is_some() {
            (InlineDataKind::Image, "image_url", "url")
        } else {
            (InlineDataKind::File, "file", "file_data")
        };
        let value = match part.get_mut(holder)? {
            Value::Object(members) => members.get_mut(data)?,
            value => value,
        };
        match value {
            Value::String(data) => Some((kind, data)),
            _ => None,
        }
    });
    data.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use egress::Egress;

    fn check(content: &Value) -> Result<(), String> {
        let egress = Egress::new(Vec::new(), Duration::from_secs(1)).unwrap();
        let body = json!({"messages": [{"role": "user", "content": "http://10.0.0.1/ is text"},
            {"role": "user", "content": content}]});
        let checked = check_urls(body.as_object().unwrap(), |url| {
            egress.check_url(url).map(drop)
        });
        checked.map_err(|fault| fault.pointer)
    }

    #[test]
    fn rejects_urls_outside_egress_rules() {
        for (part, pointer) in [
            (
                json!({"image_url": {"url": "http://169.254.169.254/latest"}}),
                "image_url/url",
            ),
            (
                json!({"image_url": {"url": "https://10.0.0.1/a.png"}}),
                "image_url/url",
            ),
            (
                json!({"image_url": {"url": "file:///etc/passwd"}}),
                "image_url/url",
            ),
            (
                json!({"image_url": {"url": "/etc/passwd"}}),
                "image_url/url",
            ),
            (json!({"image_url": "https://localhost/"}), "image_url"),
            (
                json!({"file": {"file_data": "http://10.0.0.1/a.pdf"}}),
                "file/file_data",
            ),
            (
                json!({"file": {"file_url": "HTTP://10.0.0.1/a.pdf"}}),
                "file/file_url",
            ),
            (
                json!({"video": ["data:x", " https://10.0.0.1/"]}),
                "video/1",
            ),
            (json!({"image": "http:/169.254.169.254/"}), "image"),
            (json!({"image": "http:\\\\169.254.169.254"}), "image"),
            (json!({"image": "\u{1}ht\ttp://10.0.0.1/"}), "image"),
            (json!({"image": "//10.0.0.1/"}), "image"),
            (json!({"image": "http:127.0.0.1/"}), "image"),
            (json!({"image": " HT\ntP:127.0.0.1"}), "image"),
            (
                json!({"file": {"file_data": "file:etc/passwd"}}),
                "file/file_data",
            ),
            (json!({"audio": ["ftp:10.0.0.1"]}), "audio/0"),
            (
                json!({"file": {"file_data": "view-source:http://127.0.0.1/"}}),
                "file/file_data",
            ),
            (
                json!({"file": {"file_data": "netdoc:etc/passwd"}}),
                "file/file_data",
            ),
            (json!({"file": {"file_id": "file-1"}}), "file/file_id"),
            (json!({"video": "jar:URL:http://10.0.0.1/a!/b"}), "video"),
            (
                json!({"title": {"image": "http://10.0.0.1/"}}),
                "title/image",
            ),
            (json!({"text": {"url": "http:10.0.0.1"}}), "text/url"),
            (
                json!({"context": [{"src": "https:10.0.0.1"}]}),
                "context/0/src",
            ),
            (json!({"name": [["//10.0.0.1/"]]}), "name/0/0"),
        ] {
            let refused = check(&json!([{"type": "text", "text": "http://10.0.0.1/"}, part]));
            assert_eq!(refused, Err(format!("/messages/1/content/1/{pointer}")));
        }
        for part in [
            json!({"image_url": {"url": "https://example.org/a.png", "detail": "high"}}),
            json!({"image_url": {"url": "data:image/png;base64,AA=="}}),
            json!({"image_url": {"url": "artifact:0190"}}),
            json!({"file": {"file_data": "AAAA", "filename": "a.pdf"}}),
            json!({"input_audio": {"data": "//uQxAAA", "format": "mp3"}}),
            json!({"note": "see: /a, or c://"}),
            json!({"note": "mailto:a@b.c"}),
            json!({"file": {"file_data": "DATA:application/pdf;base64,AA", "file_id": null}}),
            json!({"title": "http:10.0.0.1", "context": "https://10.0.0.1/"}),
            json!(7),
        ] {
            assert_eq!(check(&json!([part])), Ok(()), "{part}");
        }
    }

    #[test]
    fn finds_urls_anywhere_in_messages_and_tools() {
        let egress = Egress::new(Vec::new(), Duration::from_secs(1)).unwrap();
        let check = |body: Value| {
            let checked = check_urls(body.as_object().unwrap(), |url| {
                egress.check_url(url).map(drop)
            });
            checked.map_err(|fault| fault.pointer)
        };
        let inside = "http://10.0.0.1/";
        for (message, pointer) in [
            (
                json!({"content": {"image_url": {"url": inside}}}),
                "content/image_url/url",
            ),
            (json!({"content": "x", "image_url": inside}), "image_url"),
            (json!({"content": "x", "images": [inside]}), "images/0"),
            (
                json!({"reasoning": {"image": "http:10.0.0.1"}}),
                "reasoning/image",
            ),
            (json!({"refusal": [{"url": inside}]}), "refusal/0/url"),
            (
                json!({"tool_calls": [{"image_url": inside}]}),
                "tool_calls/0/image_url",
            ),
        ] {
            let refused = check(json!({"messages": [message]}));
            assert_eq!(refused, Err(format!("/messages/0/{pointer}")));
        }
        let tool = json!({"type": "custom", "server_url": inside});
        let refused = check(json!({"tools": [tool]}));
        assert_eq!(refused, Err("/tools/0/server_url".to_owned()));

        let call = json!({"id": "c", "function": {"name": "f", "arguments": inside}});
        let words = json!({"role": "assistant", "content": inside, "refusal": inside,
            "reasoning_content": inside, "tool_calls": [call]});
        let tool = json!({"type": "function", "function": {"description": inside}});
        assert_eq!(check(json!({"messages": [words], "tools": [tool]})), Ok(()));
    }

    #[test]
    fn detects_documents_of_unknown_token_count() {
        let has = |part: &Value| {
            let body = json!({"messages": [{"role": "user", "content": [part]}]});
            has_document(body.as_object().unwrap())
        };
        for part in [
            json!({"type": "file", "file": {"file_data": "https://a.b/c.pdf"}}),
            json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA"}}),
            json!({"type": "file", "file": {"file_data": "AAAA"}}),
            json!({"type": "file", "file": {"file_id": "file-1"}}),
            json!({"image_url": {"url": "data:application/pdf;base64,AA"}}),
            json!({"image_url": " DATA:video/mp4;base64,AA"}),
            json!({"image_url": "data:text/plain;base64,AA"}),
            json!({"video_url": {"url": "https://a.b/c.mp4"}}),
            json!({"video": ["https://a.b/c.mp4"]}),
            json!({"type": "image", "image": "https://a.b/c.png"}),
            json!({"audio": "data:,"}),
            json!({"image_url": {"url": "https://a.b/c", "format": "application/pdf"}}),
            json!({"image_url": {"url": "data:image/png;base64,JVBERi0xLjQ="}}),
            json!({"type": "document", "source": {"media_type": "application/pdf", "data": "AA"}}),
            json!({"type": "image", "source": {"media_type": "image/png", "data": "JVBERi0xLjQ="}}),
        ] {
            assert!(has(&part), "{part}");
        }
        for part in [
            json!({"type": "text", "text": "https://a.b/c.pdf", "title": "data:application/pdf"}),
            json!({"image_url": {"url": "https://a.b/c.png", "detail": "high"}}),
            json!({"image_url": "https://a.b/c.png"}),
            json!({"image_url": {"url": "Data:Image/png;base64,AA"}}),
            json!({"image_url": {"url": "artifact:0190"}}),
            json!({"type": "file", "file": {"file_data": "data:text/plain;base64,AA"}}),
            json!({"input_audio": {"data": "//uQxAAA", "format": "mp3"}}),
            json!({"type": "image", "source": {"media_type": "image/png", "data": "AA"}}),
            json!({"type": "tool_result", "content": "https://a.b/c.pdf"}),
        ] {
            assert!(!has(&part), "{part}");
        }
        let cited = json!([{"type": "url_citation", "url_citation": {"url": "https://a.b/c"}}]);
        let answer = json!({"role": "assistant", "content": "see", "annotations": cited});
        let body = json!({"messages": [answer]});
        assert!(!has_document(body.as_object().unwrap()));
    }

    #[test]
    fn excludes_data_from_text_and_restores_it() {
        let long = format!("data:image/png;base64,{}", "A".repeat(9000));
        let content = json!([{"type": "text", "text": "look"},
            {"image_url": {"url": long}}, {"image_url": {"url": "artifact:x"}}, {"image_url": {"url": "https://a.b/c"}},
            {"image_url": long}, {"file": {"file_data": "A".repeat(1000), "filename": "f"}}, {"file": {"file_id": "x"}}]);
        let came = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": content}, 7]});
        let mut body = came.as_object().unwrap().clone();
        let (text, non_text) = without_data(&mut body, |body| json!(body).to_string());
        let expected = NonTextContent {
            images: 4,
            file_bytes: 1000,
        };
        assert_eq!(non_text, expected);
        assert!(text.len() < 500 && text.contains("https://a.b/c"), "{text}");
        assert_eq!(Value::Object(body), came);
    }
}
