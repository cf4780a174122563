//! Input of a Query: content elements and attachments of its message.

use std::collections::BTreeSet;

use protocol::context::{AgentInput, InputAttachment};
use protocol::message::{ContentElement, ImageUrl, MessageContent};
use protocol::pipeline::{Identifier, MessageElement, PipelineQuery};
use serde_json::{Value, json};

use super::present;

/// Maximum characters of a quoted text.
const QUOTE_CHARACTERS: usize = 2000;
/// Maximum number of omitted element types that are listed.
const OMITTED: usize = 32;

/// Returns the input: the content of the preprocessed message, or that of the chain. Files of both are
/// attachments without duplicates.
pub(super) fn input(query: &PipelineQuery) -> AgentInput {
    let message = query.user_message.as_ref();
    let mut contents = match message.and_then(|message| message.content.as_ref()) {
        Some(MessageContent::Text(text)) => vec![ContentElement::text(text.clone())],
        Some(MessageContent::Parts(parts)) => parts.clone(),
        None => Vec::new(),
    };
    if contents.is_empty() {
        // The chain is the original message; preprocessing may have replaced it.
        contents = query.message_chain.iter().filter_map(content).collect();
    }
    let text: String = contents
        .iter()
        .filter(|part| part.kind == "text")
        .filter_map(|part| part.text.as_deref())
        .collect();
    AgentInput {
        text: present(Some(&text)),
        // Files of the chain count even if the preprocessed message lacks them.
        attachments: attachments(&contents, &query.message_chain),
        contents,
        ..AgentInput::default()
    }
}

/// Converts a chain element to a content element, if it has one.
fn content(element: &MessageElement) -> Option<ContentElement> {
    let (url, bytes) = (
        present(element.url.as_deref()),
        present(element.base64.as_deref()),
    );
    let of = |kind: &str| ContentElement {
        kind: kind.to_owned(),
        ..ContentElement::default()
    };
    match element.kind.as_str() {
        "Plain" => present(element.text.as_deref()).map(ContentElement::text),
        "At" => {
            let target = element.target.as_ref().and_then(Identifier::as_id);
            let name = present(element.display.as_deref()).or(target)?;
            Some(ContentElement::text(format!("@{name}")))
        }
        "AtAll" => Some(ContentElement::text("@All")),
        "Image" => match (bytes, url) {
            // Bytes win over a URL, which may expire before the run reads it.
            (Some(bytes), _) => Some(ContentElement {
                image_base64: Some(bytes),
                ..of("image_base64")
            }),
            (None, Some(url)) => Some(ContentElement {
                image_url: Some(ImageUrl { url }),
                ..of("image_url")
            }),
            (None, None) => None,
        },
        "File" => {
            let kind = if bytes.is_some() {
                "file_base64"
            } else {
                "file_url"
            };
            (bytes.is_some() || url.is_some()).then(|| ContentElement {
                file_url: url.filter(|_| bytes.is_none()),
                file_base64: bytes,
                file_name: present(element.name.as_deref()),
                ..of(kind)
            })
        }
        _ => None,
    }
}

/// Returns the files of the contents, then the additional files of the chain.
fn attachments(contents: &[ContentElement], chain: &[MessageElement]) -> Vec<InputAttachment> {
    let mut found: Vec<InputAttachment> = contents.iter().filter_map(of_content).collect();
    // Compared by content: preprocessing changes ids and names.
    let seen: BTreeSet<String> = found.iter().filter_map(address).collect();
    let further = chain.iter().filter_map(of_element);
    found
        .extend(further.filter(|one| !address(one).is_some_and(|address| seen.contains(&address))));
    found
}

/// Returns the identity of a file: its bytes, or its URL.
fn address(attachment: &InputAttachment) -> Option<String> {
    // A data URL and its bare base64 are the same bytes.
    let bare = |content: &String| match content.split_once(";base64,") {
        Some((head, base64)) if head.starts_with("data:") => base64.to_owned(),
        _ => content.clone(),
    };
    let bytes = attachment.content.as_ref().map(bare);
    bytes.or_else(|| attachment.url.clone())
}

fn of_content(part: &ContentElement) -> Option<InputAttachment> {
    let (kind, url, content) = match part.kind.as_str() {
        "image_url" => (
            "image",
            part.image_url.as_ref().map(|image| &image.url),
            None,
        ),
        "image_base64" => ("image", None, part.image_base64.as_ref()),
        "file_url" => ("file", part.file_url.as_ref(), None),
        "file_base64" => ("file", None, part.file_base64.as_ref()),
        _ => return None,
    };
    let source = if content.is_some() { "base64" } else { "url" };
    Some(InputAttachment {
        kind: Some(kind.to_owned()),
        source: Some(source.to_owned()),
        mime_type: content.and_then(|content| mime_type(content)),
        url: url.cloned(),
        content: content.cloned(),
        name: part.file_name.clone(),
        ..InputAttachment::default()
    })
}

fn of_element(element: &MessageElement) -> Option<InputAttachment> {
    let element_id = element.id.as_ref().and_then(Identifier::as_id);
    let (kind, id) = match element.kind.as_str() {
        "Image" => ("image", present(element.image_id.as_deref())),
        "Voice" => ("voice", present(element.voice_id.as_deref())),
        "File" => ("file", element_id),
        _ => return None,
    };
    let attachment = InputAttachment {
        kind: Some(kind.to_owned()),
        source: Some("message_chain".to_owned()),
        mime_type: element.base64.as_deref().and_then(mime_type),
        size: element.size.filter(|size| *size > 0),
        name: present(element.name.as_deref()),
        url: present(element.url.as_deref()),
        path: present(element.path.as_deref()),
        content: present(element.base64.as_deref()),
        id,
        ..InputAttachment::default()
    };
    let leads_somewhere = attachment.id.is_some()
        || attachment.url.is_some()
        || attachment.path.is_some()
        || attachment.content.is_some();
    leads_somewhere.then_some(attachment)
}

/// Returns the media type of a `data:` URL.
fn mime_type(content: &str) -> Option<String> {
    let (head, _) = content.strip_prefix("data:")?.split_once(',')?;
    present(head.split(';').next())
}

/// Returns the quoted message separately from the input: the sender did not write it.
pub(super) fn quote(chain: &[MessageElement]) -> Option<Value> {
    let quote = chain.iter().find(|element| element.kind == "Quote")?;
    let plain = quote.origin.iter().filter(|part| part.kind == "Plain");
    let text: String = plain.filter_map(|part| part.text.as_deref()).collect();
    // Separate from the text: a prompt injection in a quote must not look like the sender's words.
    Some(json!({
        "message_id": quote.id.as_ref().and_then(Identifier::as_id),
        "sender_id": quote.sender_id.as_ref().and_then(Identifier::as_id),
        "text": text.chars().take(QUOTE_CHARACTERS).collect::<String>(),
    }))
}

/// Returns the types of elements that the input cannot contain.
pub(super) fn omitted(chain: &[MessageElement]) -> BTreeSet<String> {
    let converted = [
        "Source", "Plain", "At", "AtAll", "Image", "File", "Voice", "Quote",
    ];
    // Bounded, since the chain may have a thousand unknown types.
    chain
        .iter()
        .map(|element| element.kind.as_str())
        .filter(|kind| !converted.contains(kind))
        .map(|kind| kind.chars().take(64).collect())
        .take(OMITTED)
        .collect()
}
