//! Authentication. Each handler takes a caller as an argument; without one it has no workspace to query.

mod roles;
pub mod run_token;
mod scoped;

use std::fmt::Display;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use domain::authorization::{FrozenConversation, NotGranted};
use domain::state::{StateKeyFault, check_key};
use domain::trace::TraceParent;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use protocol::api_key::KeyRole;
use protocol::change::REQUEST_ID_CHARS;
use protocol::id::{ApiKeyId, WorkspaceId};
use protocol::principal::Principal;
use serde_json::json;
use store::{ApiKeyRecord, AuditEntry, ChangeStamp, sha256_hex};
use uuid::Uuid;

use crate::auth_rate_limit::ClientNetwork;
use crate::error::routing::no_such;
use crate::error::{ApiError, ApiResult};
use crate::memory_budget::Sender;
use crate::query::single_header;
use crate::recheck::{AcceptedCredential, CallerCredential, RunAccess};
use crate::response_memory::ResponseMemory;
use crate::state::ApiState;
use keys::api_key::prefix_of;
use roles::check_role;
use runs::denials::DeniedEntry;
use runs::grant::Grant;
pub use scoped::ScopedCaller;

/// Maximum characters of a resource name in the audit log.
const RESOURCE_CHARS: usize = 200;

/// A client of a workspace, by an API key of any role but `owner`, without a restriction to agents.
pub struct ClientCaller {
    pub workspace: WorkspaceId,
    pub key: ApiKeyId,
    pub role: KeyRole,
    pub answer: ResponseMemory,
}

/// An operator of a workspace, by an API key of role `admin`; for routes that only read, also of role `operator` or
/// `viewer`.
pub struct AdminCaller {
    pub workspace: WorkspaceId,
    /// The API key of the request.
    pub key: ApiKeyId,
    pub role: KeyRole,
    pub answer: ResponseMemory,
    pub request: RequestId,
}

/// The holder of an API key of any role, also of a restricted one.
pub struct KeyCaller {
    pub record: ApiKeyRecord,
    pub request: RequestId,
}

/// Header `X-Request-Id` of a request, for the record of its changes: 1 to 128 visible ASCII characters. Another value
/// is ignored, because a proxy may have set it.
#[derive(Clone, Debug, Default)]
pub struct RequestId(Option<String>);

impl RequestId {
    /// The header of a request.
    pub fn of(headers: &HeaderMap) -> Self {
        let is_visible = |id: &&str| {
            (1..=REQUEST_ID_CHARS).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let id = single_header(headers, "x-request-id").ok().flatten();
        Self(id.filter(is_visible).map(str::to_owned))
    }

    /// Author and time of a change by this request.
    pub fn stamp(self, state: &ApiState, by: impl Into<Principal>) -> ChangeStamp {
        ChangeStamp {
            request_id: self.0,
            ..state.runs.stamp(by)
        }
    }
}

/// An operator of the installation, by an API key of role `owner`. It creates workspaces and has access to none.
pub struct OwnerCaller {
    /// The API key of the request.
    pub key: ApiKeyId,
    pub answer: ResponseMemory,
    pub request: RequestId,
}

impl AdminCaller {
    /// Author and time of a change by this request.
    pub fn stamp(&self, state: &ApiState) -> ChangeStamp {
        self.request.clone().stamp(state, self.key)
    }
}

impl OwnerCaller {
    /// Author and time of a change by this request.
    pub fn stamp(&self, state: &ApiState) -> ChangeStamp {
        self.request.clone().stamp(state, self.key)
    }
}

/// A runner, by the token of a live run. The run may be ending after a cancel.
pub struct RunCaller {
    pub grant: Arc<Grant>,
    pub answer: ResponseMemory,
    /// The span of the caller, when traces are exported.
    pub trace_parent: Option<TraceParent>,
    pub access: RunAccess,
}

/// A runner, by the token of a live run that has not been cancelled.
pub struct LiveCaller(pub RunCaller);

impl FromRequestParts<ApiState> for ClientCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let ApiKeyRecord {
            id: key,
            workspace,
            role,
            agents,
            ..
        } = authenticate_key(parts, state).await?;
        match role {
            // These routes read objects of all agents, so a restricted key must not pass.
            _ if agents.is_some() => Err(restricted()),
            KeyRole::Admin | KeyRole::Operator | KeyRole::Viewer | KeyRole::Client => Ok(Self {
                workspace,
                key,
                role,
                answer: ResponseMemory::of(&parts.extensions)?,
            }),
            // An owner creates workspaces and must not read their content.
            KeyRole::Owner | KeyRole::Approver => Err(needs("client or admin")),
        }
    }
}

impl FromRequestParts<ApiState> for KeyCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        Ok(Self {
            record: authenticate_key(parts, state).await?,
            request: RequestId::of(&parts.headers),
        })
    }
}

impl FromRequestParts<ApiState> for OwnerCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let record = authenticate_key(parts, state).await?;
        match record.role {
            KeyRole::Owner => Ok(Self {
                key: record.id,
                answer: ResponseMemory::of(&parts.extensions)?,
                request: RequestId::of(&parts.headers),
            }),
            KeyRole::Admin
            | KeyRole::Operator
            | KeyRole::Viewer
            | KeyRole::Approver
            | KeyRole::Client => Err(needs("owner")),
        }
    }
}

impl FromRequestParts<ApiState> for AdminCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let record = authenticate_key(parts, state).await?;
        match record.role {
            KeyRole::Admin | KeyRole::Operator | KeyRole::Viewer => Ok(Self {
                workspace: record.workspace,
                key: record.id,
                role: record.role,
                answer: ResponseMemory::of(&parts.extensions)?,
                request: RequestId::of(&parts.headers),
            }),
            KeyRole::Owner | KeyRole::Approver | KeyRole::Client => Err(needs("admin")),
        }
    }
}

fn restricted() -> ApiError {
    let message = "this API key is restricted to agents, and this route concerns the complete workspace; use a key \
        without that restriction";
    ApiError::unauthorized(message).with("reason", json!("key_agents"))
}

fn needs(role: &str) -> ApiError {
    ApiError::unauthorized(format!("this route needs an API key of role {role}"))
}

/// Reads the bearer credential. Only a single `Authorization` header is accepted.
pub fn bearer(headers: &HeaderMap) -> Result<&str, ApiError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or_else(ApiError::unauthenticated)?;
    // Proxies choose differently between two headers, so one of them could check another credential.
    if values.next().is_some() {
        return Err(ApiError::invalid_argument(
            "send one `Authorization` header",
        ));
    }
    let text = value.to_str().map_err(|_| ApiError::unauthenticated())?;
    text.strip_prefix("Bearer ")
        .ok_or_else(ApiError::unauthenticated)
}

/// Authenticates the API key of a request.
async fn authenticate_key(parts: &mut Parts, state: &ApiState) -> Result<ApiKeyRecord, ApiError> {
    let source = ClientNetwork::of(parts);
    let now_ms = state.runs.clock().now_ms();
    let now = now_ms.div_euclid(1000);
    let limit = state.auth_rate_limit();
    // Before the look-up in the database: guesses over the limit must not load it. Held until the check is over.
    let _queue_permit = limit.pass(source, now).await?;
    // Read each time, without a cache: revocation and expiry take effect at once on all replicas.
    let found = find_key(bearer(&parts.headers)?, state).await?;
    let found = found.ok_or_else(|| limit.refuse(source, now, || {}))?;
    if found.is_expired(now_ms) {
        // The response equals that to an unknown key; only the log shows the difference.
        return Err(limit.refuse(source, now, || log_expired(&found)));
    }
    state.runs.key_uses.note(&found, now_ms);
    check_role(found.role, parts)?;
    let sender = Sender::Key(found.id);
    parts.extensions.insert(sender);
    // Before this line the sender is unknown, so its memory had no owner.
    ResponseMemory::of(&parts.extensions)?.charge_to(sender);
    let credential = CallerCredential::Key {
        id: found.id,
        workspace: found.workspace.clone(),
        role: found.role,
    };
    // The body may arrive much later: this credential is checked again then, see `recheck`.
    AcceptedCredential::note(parts, credential);
    Ok(found)
}

fn log_expired(key: &ApiKeyRecord) {
    tracing::warn!(
        api_key.id = %key.id,
        api_key.name = key.name,
        role = key.role.as_str(),
        "refused API key {}, because it has expired; create another one",
        key.id
    );
}

async fn find_key(key: &str, state: &ApiState) -> Result<Option<ApiKeyRecord>, ApiError> {
    let Some(prefix) = prefix_of(key) else {
        return Ok(None);
    };
    let record = state.runs.store().access().find_api_key(prefix).await?;
    let hash = sha256_hex(key.as_bytes());
    let is_same = |record: &ApiKeyRecord| {
        // In constant time: the duration must not reveal how much of the hash is right.
        let (sent, stored) = (hash.as_bytes(), record.hash.as_bytes());
        aws_lc_rs::constant_time::verify_slices_are_equal(sent, stored).is_ok()
    };
    Ok(record.filter(is_same))
}

/// Truncates a resource name for the audit log.
fn truncated_name(name: &str) -> &str {
    // By characters: a cut by bytes could split one.
    let end = name.char_indices().nth(RESOURCE_CHARS);
    end.map_or(name, |(end, _)| &name[..end])
}

/// A host call as recorded in the audit log.
#[derive(Clone, Copy)]
pub struct AuditedCall<'a> {
    pub action: &'static str,
    pub resource: &'a str,
    pub operation: &'static str,
}

impl RunCaller {
    /// The sender for memory accounting.
    pub fn sender(&self) -> Sender {
        Sender::Run(self.grant.run.id, self.grant.run.endpoint_id)
    }

    /// Checks a call against the authorization snapshot and audits the decision.
    pub async fn granted<T, E: Display + Into<ApiError>>(
        &self,
        state: &ApiState,
        call: AuditedCall<'_>,
        permission: Result<T, E>,
    ) -> ApiResult<T> {
        let refusal = permission.as_ref().err().map(ToString::to_string);
        // Audited before it is returned: a denial must leave a trace.
        self.record(state, call, refusal.as_deref()).await?;
        permission.map_err(Into::into)
    }

    /// Returns the granted conversation. If the caller names one, it must be the run's own.
    pub async fn own_conversation<'a>(
        &self,
        state: &ApiState,
        call: AuditedCall<'_>,
        permission: Result<&'a FrozenConversation, NotGranted>,
        named: Option<&str>,
    ) -> ApiResult<&'a FrozenConversation> {
        let own = self
            .own_conversation_if_any(state, call, permission.map(Some), named)
            .await?;
        own.ok_or_else(|| no_such("this run has no conversation"))
    }

    /// Like `own_conversation`, but a run without a conversation may call it and reads nothing.
    pub async fn own_conversation_if_any<'a>(
        &self,
        state: &ApiState,
        call: AuditedCall<'_>,
        permission: Result<Option<&'a FrozenConversation>, NotGranted>,
        named: Option<&str>,
    ) -> ApiResult<Option<&'a FrozenConversation>> {
        let own = match permission {
            Ok(own) => own,
            Err(refused) => return self.granted(state, call, Err(refused)).await,
        };
        let own_id = own.map(|own| own.conversation_id.as_str());
        let foreign = named.is_some_and(|id| Some(id) != own_id);
        // An id of another conversation and an id that does not exist get the same response.
        if foreign {
            return self.refuse_foreign(state, call).await;
        }
        self.record(state, call, None).await?;
        Ok(own)
    }

    /// Refuses a conversation that is not open to the run, and audits the call.
    pub async fn refuse_foreign<T>(&self, state: &ApiState, call: AuditedCall<'_>) -> ApiResult<T> {
        let refusal = "only the run's own conversation is open to it";
        self.record(state, call, Some(refusal)).await?;
        Err(ApiError::unauthorized(refusal))
    }

    /// Checks a key of state or storage, and audits a rejected one.
    pub async fn checked_key(
        &self,
        state: &ApiState,
        call: AuditedCall<'_>,
        key: &str,
    ) -> ApiResult<()> {
        match check_key(key) {
            Ok(()) => Ok(()),
            Err(fault @ StateKeyFault::Malformed) => {
                // Not audited: a malformed key names no resource.
                Err(ApiError::invalid_argument(fault.to_string()))
            }
            Err(fault @ StateKeyFault::Reserved) => {
                self.record(state, call, Some(&fault.to_string())).await?;
                Err(ApiError::unauthorized(fault.to_string()))
            }
        }
    }

    /// Audits a call that every run may make. Fails if the run is over.
    pub async fn record(
        &self,
        state: &ApiState,
        call: AuditedCall<'_>,
        refusal: Option<&str>,
    ) -> ApiResult<()> {
        // The run may have ended since the credential was checked.
        self.access.check_local(state).await?;
        state
            .runs
            .store()
            .audit_log()
            .audit(self.audit_entry(state, call, refusal, 0))
            .await?;
        Ok(())
    }

    /// Builds the audit row of a call. `refusal` is the reason of a denial.
    pub fn audit_entry(
        &self,
        state: &ApiState,
        call: AuditedCall<'_>,
        refusal: Option<&str>,
        bytes: usize,
    ) -> AuditEntry {
        audit_entry(&self.grant, state, call, refusal, bytes)
    }
}

/// Builds the audit row of a call of a run. `refusal` is the reason of a denial.
pub fn audit_entry(
    grant: &Grant,
    state: &ApiState,
    call: AuditedCall<'_>,
    refusal: Option<&str>,
    bytes: usize,
) -> AuditEntry {
    let entry = AuditEntry {
        id: Uuid::now_v7(),
        workspace: grant.run.workspace.clone(),
        run_id: grant.run.id,
        action: call.action,
        // Clients choose resource names, and the log must not grow by them.
        resource: truncated_name(call.resource).to_owned(),
        operation: call.operation,
        allowed: refusal.is_none(),
        rule: if let Some(refusal) = refusal {
            refusal.to_owned().into()
        } else {
            let snapshot = &grant.snapshot;
            let rule = snapshot.allowing_rule(call.action, call.resource, call.operation);
            rule.into()
        },
        interaction_id: None,
        bytes: bytes as u64,
        at: state.runs.clock().now_ms(),
        is_shared: false,
    };
    // From here on: many denials of a run share one row, so that a runner cannot fill the log.
    let Some(refusal) = refusal else {
        return entry;
    };
    match state.runs.denials.count_denial(grant, call.action, refusal) {
        DeniedEntry::Own => entry,
        DeniedEntry::Shared { id, action, rule } => AuditEntry {
            id,
            action,
            rule: rule.into(),
            resource: String::new(),
            is_shared: true,
            ..entry
        },
    }
}
