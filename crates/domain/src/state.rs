//! State and storage of the host: valid keys, and owners of state.

use protocol::context::{ActorContext, SubjectContext};
use protocol::id::{AgentId, RunnerId, WorkspaceId};
use protocol::resources::StateScope;
use serde::Serialize;

use crate::canonical::canonical_json;
use crate::event::ConversationIdentity;
use crate::generation::ConversationGeneration;

/// Key prefix reserved for the gateway.
pub const RESERVED_PREFIX: &str = "host.";

/// The gateway's list of skills activated in a conversation. Runners may read it.
pub const ACTIVATED_SKILLS: &str = "host.activated_skills";

/// Reason for which a runner cannot use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateKeyFault {
    #[error("keys have 1 to 255 bytes of A-Z a-z 0-9 . _ : / -")]
    Malformed,
    #[error("keys that begin with `host.` belong to the gateway")]
    Reserved,
}

/// Checks a key from a runner.
pub fn check_key(key: &str) -> Result<(), StateKeyFault> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    if key.is_empty() || key.len() > 255 || !key.bytes().all(legal) {
        return Err(StateKeyFault::Malformed);
    }
    // Runners must not overwrite keys that the gateway relies on.
    if key.starts_with(RESERVED_PREFIX) {
        Err(StateKeyFault::Reserved)
    } else {
        Ok(())
    }
}

/// Checks a key prefix for a list. It may be empty or reserved.
pub fn check_prefix(prefix: &str) -> Result<(), StateKeyFault> {
    match check_key(prefix) {
        // An empty prefix lists all keys; reserved keys may be read.
        Err(StateKeyFault::Malformed) if !prefix.is_empty() => Err(StateKeyFault::Malformed),
        _ => Ok(()),
    }
}

/// Owner of an event's state.
#[derive(Clone, Copy, Debug)]
pub struct StateOwner<'a> {
    pub workspace: &'a WorkspaceId,
    pub runner: &'a RunnerId,
    pub agent: AgentId,
    pub bot_id: Option<&'a str>,
    pub conversation: Option<&'a ConversationIdentity>,
    /// Generation of the conversation, after the first.
    pub generation: Option<ConversationGeneration>,
    pub actor: Option<&'a ActorContext>,
    pub subject: Option<&'a SubjectContext>,
}

/// Serialized owner: keys in order, without those that the scope does not use.
#[derive(Default, Serialize)]
struct Identity<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    actor_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<AgentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bot_id: Option<Bot<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i64>,
    runner_id: String,
    scope: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
    version: u8,
    workspace_id: &'a str,
}

/// Null for an event without a bot.
#[derive(Serialize)]
struct Bot<'a>(Option<&'a str>);

/// Returns the canonical owner of a scope for this event. `None`: the event has no such party.
pub fn scope_identity(scope: StateScope, owner: &StateOwner<'_>) -> Option<String> {
    let mut identity = Identity {
        agent_id: Some(owner.agent),
        bot_id: Some(Bot(owner.bot_id)),
        runner_id: owner.runner.to_string(),
        scope: scope.as_str(),
        // The version of this format: other members would give existing state a new owner.
        version: 2,
        workspace_id: owner.workspace.as_str(),
        ..Identity::default()
    };
    match scope {
        StateScope::Conversation => {
            let conversation = owner.conversation?;
            identity.conversation_id = Some(&conversation.conversation_id);
            // The first generation has no number: its owner equals that of agents without generations.
            identity.generation = owner.generation.map(|generation| generation.number);
            identity.thread_id = Some(&conversation.thread_id);
        }
        StateScope::Actor => {
            let actor = owner.actor?;
            identity.actor_type = Some(&actor.actor_type);
            // An actor without an id has no state of its own; a shared one would leak between users.
            identity.actor_id = Some(actor.actor_id.as_ref()?);
        }
        StateScope::Subject => {
            let subject = owner.subject?;
            identity.subject_type = Some(&subject.subject_type);
            identity.subject_id = Some(subject.subject_id.as_ref()?);
        }
        StateScope::Runner => {
            // State of the runner is shared by all its agents and bots.
            identity.agent_id = None;
            identity.bot_id = None;
        }
        StateScope::Binding => identity.bot_id = None,
    }
    Some(canonical_json(&identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_identity_contains_only_owner_fields() {
        let workspace = WorkspaceId("w".to_owned());
        let runner = "plugin:a/b/c".parse().unwrap();
        let conversation = ConversationIdentity {
            bot_id: "b".to_owned(),
            conversation_id: "c".to_owned(),
            thread_id: String::new(),
        };
        let actor = ActorContext {
            actor_type: "user".to_owned(),
            actor_id: Some("u\"1".to_owned()),
            ..ActorContext::default()
        };
        let owner = StateOwner {
            workspace: &workspace,
            runner: &runner,
            agent: AgentId(uuid::Uuid::nil()),
            bot_id: None,
            generation: None,
            conversation: Some(&conversation),
            actor: Some(&actor),
            subject: None,
        };
        let nil = "00000000-0000-0000-0000-000000000000";
        let end = r#""version":2,"workspace_id":"w"}"#;
        for (scope, expected) in [
            (
                StateScope::Conversation,
                format!(
                    r#"{{"agent_id":"{nil}","bot_id":null,"conversation_id":"c","runner_id":"plugin:a/b/c","scope":"conversation","thread_id":"",{end}"#
                ),
            ),
            (
                StateScope::Actor,
                format!(
                    r#"{{"actor_id":"u\"1","actor_type":"user","agent_id":"{nil}","bot_id":null,"runner_id":"plugin:a/b/c","scope":"actor",{end}"#
                ),
            ),
            (
                StateScope::Runner,
                format!(r#"{{"runner_id":"plugin:a/b/c","scope":"runner",{end}"#),
            ),
            (
                StateScope::Binding,
                format!(
                    r#"{{"agent_id":"{nil}","runner_id":"plugin:a/b/c","scope":"binding",{end}"#
                ),
            ),
        ] {
            assert_eq!(scope_identity(scope, &owner), Some(expected));
        }
        assert_eq!(scope_identity(StateScope::Subject, &owner), None);
        let generation = ConversationGeneration {
            events_after: 1,
            number: 2,
            transcript_after: 3,
        };
        let begun = StateOwner {
            generation: Some(generation),
            ..owner
        };
        let of = |scope| scope_identity(scope, &begun);
        let conversation = of(StateScope::Conversation).unwrap();
        assert!(
            conversation.contains(r#""generation":2,"#),
            "{conversation}"
        );
        let actor = scope_identity(StateScope::Actor, &owner);
        assert_eq!(of(StateScope::Actor), actor);
    }

    #[test]
    fn rejects_malformed_and_reserved_keys() {
        for good in ["a", "external.session_id", "a/b:c-d_e", "hostname"] {
            assert_eq!(check_key(good), Ok(()), "{good}");
        }
        for bad in ["", "a b", "é", &"k".repeat(256)] {
            assert_eq!(check_key(bad), Err(StateKeyFault::Malformed), "{bad}");
        }
        assert_eq!(
            check_key("host.activated_skills"),
            Err(StateKeyFault::Reserved)
        );
    }
}
