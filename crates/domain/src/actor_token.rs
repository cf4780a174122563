//! Token of the actor of an event, for tools that are called on its behalf.

use std::fmt;

use protocol::admin::Fault;
use protocol::context::{ActorContext, CredentialType};
use serde::{Deserialize, Serialize};

/// Maximum bytes of a token.
const TOKEN_BYTES: usize = 16 * 1024;

/// A token with the identity of its actor. Child runs have that of their parent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorToken {
    pub actor_type: String,
    pub actor_id: String,
    pub kind: CredentialType,
    pub token: String,
}

impl ActorToken {
    /// Takes the token out of an actor. `None`: it has none.
    pub fn take(actor: &mut ActorContext) -> Option<Self> {
        let credential = actor.credential.take()?;
        Some(Self {
            actor_type: actor.actor_type.clone(),
            actor_id: actor.actor_id.clone()?,
            kind: credential.kind,
            token: credential.token,
        })
    }

    /// Names the actor in audit entries.
    pub fn actor(&self) -> String {
        joined(&self.actor_type, &self.actor_id)
    }
}

/// Names the actor of an event as [`ActorToken::actor`] does. Empty: it has no id.
pub fn actor_name(actor: Option<&ActorContext>) -> String {
    let named = actor.and_then(|actor| Some(joined(&actor.actor_type, actor.actor_id.as_deref()?)));
    named.unwrap_or_default()
}

/// Type and id, separated by the first colon.
fn joined(kind: &str, id: &str) -> String {
    format!("{}:{id}", kind.replace(':', "%3A"))
}

impl fmt::Debug for ActorToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by hand: the derived form would print the token.
        let mut shown = formatter.debug_struct("ActorToken");
        shown
            .field("actor", &self.actor())
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Returns the faults of an actor's credential.
pub(crate) fn check_credential(actor: &ActorContext) -> Vec<Fault> {
    let Some(credential) = &actor.credential else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    let token = &credential.token;
    // A token is sent in a form and in a header.
    let is_token = (1..=TOKEN_BYTES).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token {
        faults.push(Fault::new(
            "/actor/credential/token",
            "must be 1 to 16384 printable ASCII characters without spaces; send the token without `Bearer`",
        ));
    }
    if actor.actor_id.is_none() {
        let message = "is required with `credential`: audit entries name the actor";
        faults.push(Fault::new("/actor/actor_id", message));
    }
    faults
}

#[cfg(test)]
mod tests {
    use protocol::event::EventEnvelope;
    use serde_json::{Value, json};

    use super::*;
    use crate::canonical::canonical_json;

    fn event(actor: &Value) -> EventEnvelope {
        let event = json!({"event_type": "a.b", "actor": actor});
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn checks_credentials_by_pointer() {
        for (token, id, expected) in [
            ("t", json!("u"), vec![]),
            ("", json!("u"), vec!["/actor/credential/token"]),
            ("Bearer t", json!("u"), vec!["/actor/credential/token"]),
            (
                "t\n",
                Value::Null,
                vec!["/actor/credential/token", "/actor/actor_id"],
            ),
            (
                &*"t".repeat(TOKEN_BYTES + 1),
                json!("u"),
                vec!["/actor/credential/token"],
            ),
        ] {
            let actor =
                json!({"actor_type": "user", "actor_id": id, "credential": {"token": token}});
            let faults = crate::event::check_event(&event(&actor)).into_iter();
            let pointers: Vec<_> = faults.map(|fault| fault.pointer).collect();
            assert_eq!(pointers, expected, "{actor}");
        }
    }

    #[test]
    fn tokens_appear_in_no_text() {
        let credential = json!({"token": "canary-token", "type": "id_token"});
        let actor = json!({"actor_type": "user", "actor_id": "u", "credential": credential});
        let event = event(&actor);
        let mut texts = vec![canonical_json(&event), format!("{event:?}")];
        let mut actor = event.actor.unwrap();
        let token = ActorToken::take(&mut actor).unwrap();
        assert_eq!(
            (token.kind, token.actor().as_str()),
            (CredentialType::IdToken, "user:u")
        );
        assert_eq!(actor.credential, None);
        texts.push(format!("{token:?}"));
        for text in texts {
            assert!(!text.contains("canary-token"), "{text}");
        }
    }
}
