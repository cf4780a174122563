//! Tokens of actors: sealed with the event, opened for the tool calls of its run.

use domain::actor_token::ActorToken;
use domain::run::Run;
use protocol::id::RunId;
use secrets::seal::MasterKey;
use store::{SealedActorToken, StoreError};

use crate::deps::RunDeps;

/// Seals a token for a run. A text that is copied to another run does not open there.
pub(crate) fn sealed(key: &MasterKey, run: RunId, token: &ActorToken) -> SealedActorToken {
    let plain = serde_json::json!(token).to_string();
    SealedActorToken {
        actor: token.actor(),
        sealed: key.seal(&purpose(run), plain.as_bytes()),
    }
}

fn purpose(run: RunId) -> String {
    format!("actor_tokens.token {run}")
}

impl RunDeps {
    /// Opens the token of the actor for whom a run calls tools. `None`: there is none, or it is sealed with another key.
    pub(crate) async fn actor_token(&self, run: &Run) -> Result<Option<ActorToken>, StoreError> {
        let Some(sealed) = self.store.events().find_actor_token(run.id).await? else {
            return Ok(None);
        };
        let plain = self.master_key.open(&purpose(run.id), &sealed);
        let token = plain
            .ok()
            .and_then(|plain| serde_json::from_slice(&plain).ok());
        if token.is_none() {
            tracing::error!(
                run.id = %run.id,
                "cannot open the token of the actor of run {}, its calls on behalf of the actor are refused", run.id
            );
        }
        Ok(token)
    }
}
