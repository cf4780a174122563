//! The facts of one run that platforms use.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protocol::JsonObject;
use protocol::context::{ActorContext, AgentRunContext, ConversationContext, InputAttachment};
use protocol::interaction::InteractionSubmission;
use protocol::message::ContentElement;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use crate::request::FilePart;
use crate::upstream::failure::{ConnectorFailure, Mapped};

/// Maximum files of one event.
pub const MAX_FILES: usize = 20;
/// Maximum bytes of one file.
pub const FILE_BYTES: usize = 16 * 1024 * 1024;
/// Default limit of one result in bytes, for a gateway that declares none.
const RESULT_BYTES: u64 = 256 * 1024;

/// One event for one agent.
#[derive(Clone, Debug)]
pub struct ConnectorTurn {
    pub run_id: String,
    /// Identifies the user to the platform: `{actor_type}_{actor_id}`. Without an actor the conversation's launcher or id,
    /// without a conversation `user_{run_id}`.
    pub user: String,
    pub text: String,
    pub files: Vec<TurnFile>,
    /// The answer to a question of an earlier run.
    pub submission: Option<InteractionSubmission>,
    /// The conversation's state.
    pub state: JsonObject,
    /// The event's actor and conversation, as in the context; `null` where it has none.
    pub actor: Value,
    pub conversation: Value,
    /// Business parameters of the entry: `adapter.extra.params`.
    pub params: JsonObject,
    /// The token of the run, for the option `host-tools`.
    pub run_token: Option<SecretString>,
    /// The run's deadline in epoch seconds, which bounds the tokens that are made for it.
    pub deadline: Option<f64>,
    /// False: send the text in one message, without deltas.
    pub streams: bool,
    /// Send the model's reasoning, by the option `show-thoughts`.
    pub shows_reasoning: bool,
    /// Maximum bytes of one result.
    pub result_bytes: usize,
}

/// A file of the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnFile {
    pub name: String,
    pub mime_type: String,
    pub content: FileContent,
}

/// Location of a file's bytes.
#[derive(Clone, PartialEq, Eq)]
pub enum FileContent {
    Bytes(Arc<[u8]>),
    Url(String),
    /// An artifact of the gateway. The driver replaces it by bytes before the run begins.
    Artifact(String),
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Url(url) => write!(f, "Url({url})"),
            Self::Artifact(id) => write!(f, "Artifact({id})"),
        }
    }
}

impl Default for ConnectorTurn {
    fn default() -> Self {
        Self {
            run_id: String::new(),
            user: "user".to_owned(),
            text: String::new(),
            files: Vec::new(),
            submission: None,
            state: JsonObject::new(),
            actor: Value::Null,
            conversation: Value::Null,
            params: JsonObject::new(),
            run_token: None,
            deadline: None,
            streams: true,
            shows_reasoning: false,
            result_bytes: usize::try_from(RESULT_BYTES).unwrap_or(usize::MAX),
        }
    }
}

impl ConnectorTurn {
    /// Reads the facts of a context. Fails with `upload_error` if a file cannot be read.
    pub fn of(context: &AgentRunContext) -> Mapped<Self> {
        let input = &context.input;
        // Some clients send a blank text next to the parts.
        let text = input.text.clone().filter(|text| !text.trim().is_empty());
        let parts = || {
            input
                .contents
                .iter()
                .filter_map(|part| part.text.as_deref())
        };
        let params = context
            .adapter
            .as_ref()
            .and_then(|adapter| adapter.extra.get("params"));
        Ok(Self {
            run_id: context.run_id.clone(),
            user: user_of(context.actor.as_ref(), context.conversation.as_ref())
                .unwrap_or_else(|| format!("user_{}", context.run_id)),
            text: text.unwrap_or_else(|| parts().collect::<Vec<_>>().join(" ")),
            files: files_of(&input.attachments, &input.contents)?,
            submission: input.interaction.clone(),
            state: context.state.conversation.clone(),
            actor: json!(context.actor),
            conversation: json!(context.conversation),
            params: params
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
            deadline: context.runtime.deadline_at,
            streams: context.delivery.supports_streaming,
            result_bytes: result_bytes(&context.runtime.metadata),
            ..Self::default()
        })
    }

    /// The run token as a member of this name, if the agent is configured to receive it.
    pub fn host_tools(&self, name: Option<&String>) -> Option<(String, Value)> {
        let token = self.run_token.as_ref()?.expose_secret();
        Some((name?.clone(), json!(token)))
    }

    /// The text, or the default if it is blank.
    pub fn text_or<'a>(&'a self, default: &'a str) -> &'a str {
        match self.text.trim() {
            "" => default,
            _ => &self.text,
        }
    }
}

/// The user of a run, the same in all runs of a conversation: the actor, else the launcher, else the conversation, each
/// as `{type}_{id}`.
fn user_of(
    actor: Option<&ActorContext>,
    conversation: Option<&ConversationContext>,
) -> Option<String> {
    let named = |kind: Option<&str>, default: &str, id: Option<&str>| {
        let id = id.filter(|id| !id.trim().is_empty())?;
        let kind = kind.filter(|kind| !kind.trim().is_empty());
        Some(format!("{}_{id}", kind.unwrap_or(default)))
    };
    let actor =
        actor.and_then(|actor| named(Some(&actor.actor_type), "user", actor.actor_id.as_deref()));
    let of_conversation = || {
        let conversation = conversation?;
        let launcher = conversation.launcher_type.as_deref();
        let launcher = named(launcher, "launcher", conversation.launcher_id.as_deref());
        let ids = [
            &conversation.conversation_id,
            &conversation.session_id,
            &conversation.thread_id,
        ];
        launcher.or_else(|| {
            let mut ids = ids.into_iter();
            ids.find_map(|id| named(None, "conversation", id.as_deref()))
        })
    };
    actor.or_else(of_conversation)
}

fn result_bytes(metadata: &JsonObject) -> usize {
    let limit = |name: &str| metadata.get("limits")?.get(name)?.as_u64();
    let limits = ["line_bytes", "event_bytes"].into_iter().filter_map(limit);
    let least = limits
        .filter(|bytes| *bytes > 0)
        .min()
        .unwrap_or(RESULT_BYTES);
    usize::try_from(least).unwrap_or(usize::MAX)
}

/// Reads the files of the attachments, or of the contents if there are none.
fn files_of(attachments: &[InputAttachment], contents: &[ContentElement]) -> Mapped<Vec<TurnFile>> {
    let attached = attachments
        .iter()
        .map(attachment)
        .collect::<Result<Vec<_>, _>>()?;
    // An event may list a file in both: reading both would send it twice.
    let files = if attached.is_empty() {
        let parts = contents.iter().filter_map(part);
        parts.collect::<Result<Vec<_>, _>>()?
    } else {
        attached
    };
    match files.get(MAX_FILES) {
        None => Ok(files),
        Some(file) => Err(ConnectorFailure::upload(
            &file.name,
            &format!("is beyond the bound of {MAX_FILES} files"),
        )),
    }
}

fn attachment(file: &InputAttachment) -> Mapped<TurnFile> {
    let name = file.name.clone().unwrap_or_else(|| "file".to_owned());
    let (content, mime_type) = match (&file.id, &file.content, &file.url) {
        (Some(id), _, _) => (FileContent::Artifact(id.clone()), None),
        (None, Some(data), _) => bytes_of(&name, data)?,
        (None, None, Some(url)) => content_of(&name, url)?,
        (None, None, None) => return Err(ConnectorFailure::upload(&name, "has no content")),
    };
    let mime_type = file.mime_type.clone().or(mime_type);
    Ok(TurnFile {
        mime_type: mime_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
        name,
        content,
    })
}

fn part(part: &ContentElement) -> Option<Mapped<TurnFile>> {
    let (name, default) = if part.kind.starts_with("image") {
        ("image", "image/jpeg")
    } else {
        ("file", "application/octet-stream")
    };
    let name = part.file_name.clone().unwrap_or_else(|| name.to_owned());
    let read = match part.kind.as_str() {
        "image_base64" => bytes_of(&name, part.image_base64.as_deref()?),
        "image_url" => content_of(&name, &part.image_url.as_ref()?.url),
        "file_base64" => bytes_of(&name, part.file_base64.as_deref()?),
        "file_url" => content_of(&name, part.file_url.as_deref()?),
        _ => return None,
    };
    Some(read.map(|(content, mime_type)| TurnFile {
        mime_type: mime_type.unwrap_or_else(|| default.to_owned()),
        name,
        content,
    }))
}

type Content = (FileContent, Option<String>);

fn content_of(name: &str, url: &str) -> Mapped<Content> {
    if url.starts_with("data:") {
        return bytes_of(name, url);
    }
    Ok(match url.strip_prefix("artifact:") {
        Some(id) => (FileContent::Artifact(id.to_owned()), None),
        None => (FileContent::Url(url.to_owned()), None),
    })
}

/// Base64, or a `data:` URL of base64.
fn bytes_of(name: &str, data: &str) -> Mapped<Content> {
    let split = data
        .strip_prefix("data:")
        .and_then(|data| data.split_once(','));
    let (head, base64) = split.unwrap_or(("", data));
    // Compare the encoded length, so that no larger buffer is allocated.
    if base64.len() / 4 * 3 > FILE_BYTES {
        return Err(ConnectorFailure::upload(
            name,
            &format!("is larger than {FILE_BYTES} bytes"),
        ));
    }
    let bytes = STANDARD.decode(base64.trim());
    let bytes =
        bytes.map_err(|_| ConnectorFailure::upload(name, "has content that is no base64"))?;
    let mime_type = head
        .split(';')
        .next()
        .filter(|mime_type| !mime_type.is_empty());
    Ok((
        FileContent::Bytes(bytes.into()),
        mime_type.map(str::to_owned),
    ))
}

impl TurnFile {
    /// The bytes; an error that names the file where only an address is known.
    pub fn bytes(&self) -> Mapped<Arc<[u8]>> {
        match &self.content {
            FileContent::Bytes(bytes) => Ok(bytes.clone()),
            FileContent::Url(_) | FileContent::Artifact(_) => Err(ConnectorFailure::upload(
                &self.name,
                "has no bytes, and the platform takes no addresses",
            )),
        }
    }

    /// The public address, if only that is available.
    pub fn address(&self) -> Option<&str> {
        match &self.content {
            FileContent::Url(url) => Some(url),
            FileContent::Bytes(_) | FileContent::Artifact(_) => None,
        }
    }

    /// The bytes in base64.
    pub fn base64(&self) -> Mapped<String> {
        Ok(STANDARD.encode(self.bytes()?))
    }

    /// The platform's word for the type: of an image, of audio, of a video, or of another file.
    pub fn kind<'a>(&self, [image, audio, video, other]: [&'a str; 4]) -> &'a str {
        match self.mime_type.split('/').next() {
            Some("image") => image,
            Some("audio") => audio,
            Some("video") => video,
            _ => other,
        }
    }

    /// The bytes as the part `file` of a multipart body.
    pub fn part(&self) -> Mapped<FilePart> {
        Ok(FilePart {
            field: "file",
            name: self.name.clone(),
            mime_type: self.mime_type.clone(),
            bytes: self.bytes()?,
        })
    }

    /// A `data:` URL of the bytes, or the public address.
    pub fn url(&self) -> Mapped<String> {
        match &self.content {
            FileContent::Url(url) => Ok(url.clone()),
            _ => Ok(format!("data:{};base64,{}", self.mime_type, self.base64()?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(attachments: &Value, contents: &Value) -> Mapped<Vec<TurnFile>> {
        let attachments: Vec<_> = serde_json::from_value(attachments.clone()).unwrap();
        let contents: Vec<_> = serde_json::from_value(contents.clone()).unwrap();
        files_of(&attachments, &contents)
    }

    #[test]
    fn reads_files_from_attachments_or_contents() {
        let image = json!([{"type": "text", "text": "a"}, {"type": "image_base64", "image_base64": "data:image/png;base64,YQ=="}]);
        let read = files(&json!([]), &image).unwrap();
        assert_eq!(
            (read[0].mime_type.as_str(), &*read[0].bytes().unwrap()),
            ("image/png", &b"a"[..])
        );
        let attached = json!([{"name": "a.pdf", "mime_type": "application/pdf", "id": "x"}]);
        let read = files(&attached, &image).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].content, FileContent::Artifact("x".to_owned()));
    }

    #[test]
    fn users_outlast_their_runs() {
        for (actor, conversation, user) in [
            (
                json!({"actor_type": "user", "actor_id": "7"}),
                json!({"launcher_id": "g"}),
                "user_7",
            ),
            (
                json!({"actor_type": "user", "actor_id": " "}),
                json!({"launcher_type": "group", "launcher_id": "g", "conversation_id": "c"}),
                "group_g",
            ),
            (json!(null), json!({"launcher_id": "g"}), "launcher_g"),
            (
                json!(null),
                json!({"launcher_id": "", "conversation_id": "c"}),
                "conversation_c",
            ),
            (
                json!({"actor_type": "system"}),
                json!({"session_id": "s"}),
                "conversation_s",
            ),
            (json!({"actor_type": "system"}), json!({"bot_id": "b"}), ""),
            (json!(null), json!(null), ""),
        ] {
            let actor: Option<ActorContext> = serde_json::from_value(actor).unwrap();
            let conversation: Option<ConversationContext> =
                serde_json::from_value(conversation).unwrap();
            let found = user_of(actor.as_ref(), conversation.as_ref());
            assert_eq!(found.unwrap_or_default(), user);
        }
    }

    #[test]
    fn files_without_content_are_errors() {
        for attachment in [
            json!([{"name": "a.pdf"}]),
            json!([{"name": "a.pdf", "content": "~"}]),
        ] {
            let failure = files(&attachment, &json!([])).unwrap_err();
            assert!(failure.message.contains("a.pdf"), "{}", failure.message);
        }
        let many = Value::from(vec![json!({"url": "https://a.example/f"}); MAX_FILES + 1]);
        assert!(files(&many, &json!([])).is_err());
    }
}
