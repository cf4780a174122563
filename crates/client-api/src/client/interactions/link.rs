//! Authentication by interaction link: the token answers one interaction without an API key.

use axum::extract::FromRequestParts;
use http::request::Parts;
use protocol::id::WorkspaceId;
use store::sha256_hex;

use runs::interactions::{AnswerSender, AnsweredQuestion};
use web::auth_rate_limit::ClientNetwork;
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::recheck::{AcceptedCredential, CallerCredential};
use web::state::ApiState;

/// A caller with a link token. The interaction is read after the body is complete.
pub(crate) struct LinkCaller {
    token_sha256: String,
}

impl LinkCaller {
    /// Reads the current interaction of the link and its workspace.
    pub(in crate::client) async fn question(
        self,
        state: &ApiState,
    ) -> ApiResult<(WorkspaceId, AnsweredQuestion)> {
        let store = state.runs.store();
        let found = store
            .interactions()
            .find_interaction_of_link(&self.token_sha256)
            .await?;
        let replaced = || ApiError::unauthenticated().of_link();
        let (workspace, record) = found.ok_or_else(replaced)?;
        let sender = AnswerSender::Link {
            token_sha256: self.token_sha256,
        };
        Ok((workspace, AnsweredQuestion { record, sender }))
    }
}

impl FromRequestParts<ApiState> for LinkCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let source = ClientNetwork::of(parts);
        let now = state.runs.clock().now_seconds();
        // Before the look-up: guessed tokens over the limit must not load the database.
        let _queue_permit = state.auth_rate_limit().pass(source, now).await?;
        let PathOf(token) = PathOf::<String>::from_request_parts(parts, state).await?;
        let store = state.runs.store();
        let token_sha256 = sha256_hex(token.as_bytes());
        if store
            .interactions()
            .find_interaction_of_link(&token_sha256)
            .await?
            .is_none()
        {
            return Err(state.auth_rate_limit().refuse(source, now, || {}).of_link());
        }
        // The record is dropped here and read again after the body, which may take long.
        let credential = CallerCredential::Link {
            token_sha256: token_sha256.clone(),
        };
        AcceptedCredential::note(parts, credential);
        Ok(Self { token_sha256 })
    }
}
