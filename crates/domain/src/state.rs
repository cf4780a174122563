//! Host-owned state and storage: which keys are legal and whose state it is.

use protocol::context::{ActorContext, SubjectContext};
use protocol::id::{AgentId, RunnerId, WorkspaceId};
use protocol::resources::StateScope;
use serde_json::json;

use crate::canonical::canonical_json;
use crate::event::ConversationIdentity;

/// Keys that begin so are the gateway's own.
pub const RESERVED_PREFIX: &str = "host.";

/// The gateway's own entry of a conversation: which skills were activated there. Runners may read it.
pub const ACTIVATED_SKILLS: &str = "host.activated_skills";

/// Why a key cannot be used by a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    #[error("keys have 1 to 255 bytes of A-Z a-z 0-9 . _ : / -")]
    Malformed,
    #[error("keys that begin with `host.` belong to the gateway")]
    Reserved,
}

/// Checks a key that a runner named.
pub fn check_key(key: &str) -> Result<(), KeyFault> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    if key.is_empty() || key.len() > 255 || !key.bytes().all(legal) {
        return Err(KeyFault::Malformed);
    }
    if key.starts_with(RESERVED_PREFIX) {
        Err(KeyFault::Reserved)
    } else {
        Ok(())
    }
}

/// Checks the beginning of keys that a list is asked for; it may be empty, and may be reserved.
pub fn check_prefix(prefix: &str) -> Result<(), KeyFault> {
    match check_key(prefix) {
        Err(KeyFault::Malformed) if !prefix.is_empty() => Err(KeyFault::Malformed),
        _ => Ok(()),
    }
}

/// Whose event it is, as far as state is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    pub workspace: &'a WorkspaceId,
    pub runner: &'a RunnerId,
    pub agent: AgentId,
    pub bot_id: Option<&'a str>,
    pub conversation: Option<&'a ConversationIdentity>,
    pub actor: Option<&'a ActorContext>,
    pub subject: Option<&'a SubjectContext>,
}

/// The canonical identity of a scope for this event; `None` when the event has no such party.
pub fn scope_identity(scope: StateScope, owner: &Owner<'_>) -> Option<String> {
    let agent = json!({
        "version": 2, "scope": scope.as_str(), "workspace_id": owner.workspace.as_str(),
        "runner_id": owner.runner.to_string(), "agent_id": owner.agent.to_string(),
        "bot_id": owner.bot_id,
    });
    let mut identity = agent.as_object().cloned().unwrap_or_default();
    match scope {
        StateScope::Conversation => {
            let conversation = owner.conversation?;
            identity.insert(
                "conversation_id".to_owned(),
                json!(conversation.conversation_id),
            );
            identity.insert("thread_id".to_owned(), json!(conversation.thread_id));
        }
        StateScope::Actor => {
            let actor = owner.actor?;
            identity.insert("actor_type".to_owned(), json!(actor.actor_type));
            identity.insert("actor_id".to_owned(), json!(actor.actor_id.as_ref()?));
        }
        StateScope::Subject => {
            let subject = owner.subject?;
            identity.insert("subject_type".to_owned(), json!(subject.subject_type));
            identity.insert("subject_id".to_owned(), json!(subject.subject_id.as_ref()?));
        }
        StateScope::Runner => {
            identity.remove("agent_id");
            identity.remove("bot_id");
        }
        StateScope::Binding => {
            identity.remove("bot_id");
        }
    }
    Some(canonical_json(&identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_plain_and_not_reserved() {
        for good in ["a", "external.session_id", "a/b:c-d_e", "hostname"] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        for bad in ["", "a b", "é", &"k".repeat(256)] {
            assert_eq!(check_key(bad), Err(KeyFault::Malformed), "{bad}");
        }
        assert_eq!(check_key("host.activated_skills"), Err(KeyFault::Reserved));
    }
}
