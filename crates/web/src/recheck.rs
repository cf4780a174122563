//! The second check of a credential, after the body is complete and before the request takes effect.
//!
//! The first check happens when the headers arrive, and the body may take `server.body_seconds` longer.
//! Meanwhile a run can end or be cancelled, a key can be revoked or expire, a link can be replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{BodyDataStream, Bytes};
use axum::extract::{FromRequest, Request};
use futures_util::StreamExt as _;
use http::StatusCode;
use http::request::Parts;
use protocol::api_key::KeyRole;
use protocol::id::{ApiKeyId, WorkspaceId};

use crate::discard_body::discard_body;
use crate::error::{ApiError, ApiResult};
use crate::state::ApiState;
use runs::call_abort::{AbortReason, LocalRunState};
use runs::grant::Grant;

/// Lifetime of a database check. A body that arrives together with its headers needs no second query. Its check
/// is then no older than that of a call without a body.
const CHECK_LIFETIME: Duration = Duration::from_millis(5);

/// A credential that passed the first check. An extension of the request; without it no body is read.
#[derive(Clone)]
pub struct AcceptedCredential {
    credential: CallerCredential,
    at: Instant,
}

/// The credential to check again.
#[derive(Clone)]
pub enum CallerCredential {
    Run(RunAccess),
    Key {
        id: ApiKeyId,
        workspace: WorkspaceId,
        role: KeyRole,
    },
    /// The link of an interaction.
    Link {
        token_sha256: String,
    },
}

/// Access of a call after a cancel, during the grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCancel {
    Open,
    Refused,
}

/// A run with a valid token.
#[derive(Clone)]
pub struct RunAccess {
    pub grant: Arc<Grant>,
    pub after_cancel: AfterCancel,
    /// This process owned the run at the first check.
    pub driven_here: bool,
}

impl AcceptedCredential {
    /// Stores the credential and the time of its check in the request.
    pub fn note(parts: &mut Parts, credential: CallerCredential) {
        parts.extensions.insert(Self {
            credential,
            at: Instant::now(),
        });
    }

    async fn check_again(&self, state: &ApiState) -> ApiResult<()> {
        let is_fresh = self.at.elapsed() < CHECK_LIFETIME;
        match &self.credential {
            CallerCredential::Run(run) if is_fresh => run.check_local(state).await,
            CallerCredential::Run(run) => run.check(state).await,
            // A fresh check of a key or a link was a query of the database.
            _ if is_fresh => Ok(()),
            CallerCredential::Key {
                id,
                workspace,
                role,
            } => {
                let store = state.runs.store();
                let key = store.access().find_api_key_by_id(workspace, *id).await?;
                let now = state.runs.clock().now_ms();
                let is_valid = key.is_some_and(|key| key.is_valid(now) && key.role == *role);
                is_valid.then_some(()).ok_or_else(ApiError::unauthenticated)
            }
            CallerCredential::Link { token_sha256 } => {
                let store = state.runs.store();
                let found = store
                    .interactions()
                    .find_interaction_of_link(token_sha256)
                    .await?;
                // A newer link was created while the body arrived.
                let replaced = || ApiError::unauthenticated().of_link();
                found.map(drop).ok_or_else(replaced)
            }
        }
    }
}

impl RunAccess {
    /// Fails if the run has ended, was cancelled or has a newer attempt.
    pub(crate) async fn check(&self, state: &ApiState) -> ApiResult<()> {
        let over = match state.runs.aborts.local_state(&self.grant) {
            LocalRunState::Lives => None,
            LocalRunState::Over(over) => Some(over),
            LocalRunState::Unknown => state.runs.aborts.stored_abort(&self.grant).await?,
        };
        self.refuse(over, state).await
    }

    /// Like `check`, but without a query if this process still owns the run, or never did.
    pub async fn check_local(&self, state: &ApiState) -> ApiResult<()> {
        match state.runs.aborts.local_state(&self.grant) {
            LocalRunState::Over(over) => self.refuse(Some(over), state).await,
            LocalRunState::Unknown if self.driven_here => self.check(state).await,
            LocalRunState::Lives | LocalRunState::Unknown => Ok(()),
        }
    }

    async fn refuse(&self, over: Option<AbortReason>, state: &ApiState) -> ApiResult<()> {
        match over {
            None => Ok(()),
            Some(AbortReason::Ended) => {
                let grants = &state.runs.grants;
                let current = grants.find_grant(self.grant.run.id).await?;
                Err(match current {
                    Some(current) if grants.has_moved(self.grant.attempt, &current).await? => {
                        run_moved()
                    }
                    Some(_) | None => AbortReason::Ended.into(),
                })
            }
            Some(AbortReason::Cancelled) if self.after_cancel == AfterCancel::Open => Ok(()),
            Some(over) => Err(over.into()),
        }
    }
}

/// A server whose routes accept bodies.
pub trait ChecksCredentials: Send + Sync {
    /// Checks the credential of a request again. `accepted` is the record of the first check.
    fn check_again(
        &self,
        accepted: Option<&AcceptedCredential>,
    ) -> impl Future<Output = ApiResult<()>> + Send;
}

impl ChecksCredentials for ApiState {
    async fn check_again(&self, accepted: Option<&AcceptedCredential>) -> ApiResult<()> {
        let accepted = accepted.ok_or_else(ApiError::unauthenticated)?;
        accepted.check_again(self).await
    }
}

/// A streamed body. It reports its end only while the credential is valid.
pub struct StreamedBody {
    frames: BodyDataStream,
    accepted: Option<AcceptedCredential>,
    state: ApiState,
}

impl FromRequest<ApiState> for StreamedBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> ApiResult<Self> {
        Ok(Self {
            accepted: request.extensions().get().cloned(),
            frames: request.into_body().into_data_stream(),
            state: state.clone(),
        })
    }
}

impl StreamedBody {
    /// The next chunk; `None` at the end.
    pub async fn next(&mut self) -> ApiResult<Option<Bytes>> {
        match self.frames.next().await {
            Some(Ok(frame)) => Ok(Some(frame)),
            Some(Err(_)) => Err(ApiError::invalid_argument("the body could not be read")),
            None => {
                self.state.check_again(self.accepted.as_ref()).await?;
                Ok(None)
            }
        }
    }

    /// Discards the rest of the body: clients read no response while they send.
    pub async fn discard_body(&mut self) {
        discard_body(&mut self.frames).await;
    }
}

/// The token belongs to an earlier attempt of a live run.
pub fn run_moved() -> ApiError {
    let message = "another gateway has taken the run over, and this token is of the attempt before; wait for \
                   the resume, and repeat the call with its token";
    ApiError::new(StatusCode::UNAUTHORIZED, "run_moved", message)
}
