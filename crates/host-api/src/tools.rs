//! Granted tools: list, describe and call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use domain::authorization::NotGranted;
use domain::tool_call::is_repeatable;
use http::{HeaderMap, StatusCode};
use protocol::JsonObject;
use protocol::error::ErrorBody;
use protocol::id::ApprovalId;
use protocol::interaction::MAX_WAIT_SECONDS;
use protocol::resources::{StateScope, ToolOperation, ToolResource};
use protocol::tool::{
    APPROVED_BY_HEADER, CallTool, HeldToolCall, KEY_SCOPE_HEADER, KeyScope, ToolCallResult,
    ToolDescription, ToolDetail, ToolList,
};
use serde::Deserialize;
use serde_json::{Value, json};
use store::{ActivateSkill, ApprovalReference, KeyOf, StateAccess, TicketKey};

use crate::amendment::AMENDED;
use crate::call_approval::ApprovedOutcome;
use crate::hooks::checked_result;
use crate::host_call::{HostCall, Spend};
use crate::result_offload::offload;
use crate::ticketed_call::TicketedCall;
use runs::call_limits::CallKind;
use runs::grant::Grant;
use tools::{AvailableTool, Behalf, CallOrigin, RegisteredPackage, SkillsOfRun};
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::catalog_work::of_run;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, idempotency_key, single_header};
use web::skill_registrar::{StoreRegistrar, registered_package};
use web::state::ApiState;

/// Lists the granted tools with their schemas.
#[utoipa::path(get, path = "/host/v1/tools", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "All items", body = ToolList),
    (status = 401, description = "The run token is not valid", body = ErrorBody)))]
pub(crate) async fn list_granted_tools(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Response> {
    let call = AuditedCall {
        action: "list_tools",
        resource: "tool",
        operation: "list",
    };
    caller.record(&state, call, None).await?;
    let list = |grant: &Grant| {
        let tools = &grant.snapshot.resources.tools;
        Json(BTreeMap::from([("tools", tools)])).into_response()
    };
    of_run(&caller, list).await
}

/// Retrieves a granted tool with its parameter schema.
#[utoipa::path(get, path = "/host/v1/tools/{name}", tag = "host", security(("run_token" = [])),
    params(("name" = String, Path, description = "Percent-encoded")), responses(
    (status = 200, description = "Name, description and the schema of its parameters", body = ToolDetail),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted, or withdrawn since (`details.reason`)", body = ErrorBody)))]
pub(crate) async fn get_tool(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(name): PathOf<String>,
) -> ApiResult<Json<ToolDetail>> {
    read_detail(&caller, &state, name).await.map(Json)
}

/// Reads a granted tool, for all APIs that offer it.
pub(super) async fn read_detail(
    caller: &RunCaller,
    state: &ApiState,
    name: String,
) -> ApiResult<ToolDetail> {
    let call = AuditedCall {
        action: "get_tool_detail",
        resource: &name,
        operation: "detail",
    };
    let permission = caller.grant.snapshot.tool(&name, ToolOperation::Detail);
    let granted = caller.granted(state, call, permission).await?;
    still_exists(state, granted)?;
    Ok(ToolDetail {
        tool: ToolDescription {
            name,
            description: granted.description.clone().unwrap_or_default(),
            parameters: schema_of(granted),
            source: granted.source.clone(),
            effect: granted.effect,
            idempotent: granted.idempotent,
            effect_source: granted.effect_source,
        },
    })
}

/// Calls a granted tool.
///
/// The gateway validates the parameters against the tool's schema first. With an `Idempotency-Key` the tool is
/// called once: repeated requests with the same key and parameters return the stored result. This covers lost
/// responses, too. A call without a key has its ordinal among the same calls of the run as its key, unless the tool only
/// reads. A call of a tool with `approval: ask` waits until an approval covers it (`docs/approvals.md`). A call that may have been executed is never repeated: the tool's `reconcile` tool is asked, then a person if the
/// agent allows it, else the response is 409 `outcome_unknown`.
#[utoipa::path(post, path = "/host/v1/tools/{name}/call", tag = "host", security(("run_token" = [])),
    params(("name" = String, Path, description = "Percent-encoded"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters, unique for each intended call"),
        ("Idempotency-Key-Scope" = Option<String>, Header, description = "`run` (default) or `conversation`. With `conversation`, later runs of this agent in this conversation get the stored result for the same key, for 7 days"),
        WaitForApproval,
        ("Approved-By" = Option<String>, Header, description = "The answered question that approved the call, for the audit log: `{run_id}/{interaction_id}` of this run or of an earlier run of its agent in its conversation. A question that is not found is ignored, and the header grants nothing")),
    request_body = CallTool, responses(
    (status = 200, description = "The tool's result, which may be an error that the tool reports", body = ToolCallResult),
    (status = 202, description = "Not called: with `wait_seconds`, no person has decided about the call in this time. Repeat it with the same idempotency key", body = HeldToolCall),
    (status = 400, description = "A parameter does not match the schema, the tool rejected it, or the run has no conversation for the key scope", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted, or withdrawn since. `details.reason`: schema_changed or tool_gone, for a registered skill skill_changed or skill_gone", body = ErrorBody),
    (status = 409, description = "The idempotency key belongs to another request or is in use, its outcome is unknown, or no person allowed the call (`details.reason`: call_denied, approval_expired, too_long_to_approve, approval_required); or the run was cancelled", body = ErrorBody),
    (status = 429, description = "A limit is reached: the tool's rate limit, a budget, or the run's call rate", body = ErrorBody),
    (status = 502, description = "The tool is unreachable, or its response is not valid", body = ErrorBody),
    (status = 504, description = "The tool did not respond in time, or the run is over", body = ErrorBody)))]
pub(crate) async fn call_tool(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(name): PathOf<String>,
    QueryOf(query): QueryOf<WaitForApproval>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<CallTool>,
) -> ApiResult<Response> {
    let wait = query.wait()?;
    let key = idempotency_key(&headers)?;
    let scope = scope_of(&headers)?;
    if key.is_none() && scope.is_some() {
        let message = "`Idempotency-Key-Scope` requires an `Idempotency-Key` header";
        return Err(ApiError::invalid_argument(message));
    }
    let scope = scope.unwrap_or_default();
    let key = key.map(|key| CallKey { key, scope });
    let call = ToolCalling {
        caller: &caller,
        state: &state,
        name: &name,
        approval: approval_of(&headers)?,
    };
    let outcome = call.call_when_approved(body.parameters, key, wait).await?;
    Ok(match outcome {
        ApprovedOutcome::Result(result) => Json(ToolCallResult { result }).into_response(),
        ApprovedOutcome::Held(held) => (StatusCode::ACCEPTED, Json(held)).into_response(),
    })
}

/// Wait of a call for its approval.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitForApproval {
    /// Maximum wait for the decision of a person, in seconds: 0 to 30. Absent: until it is final.
    #[param(minimum = 0, maximum = 30)]
    wait_seconds: Option<u64>,
}

impl WaitForApproval {
    fn wait(self) -> ApiResult<Option<Duration>> {
        if self
            .wait_seconds
            .is_some_and(|wait| wait > MAX_WAIT_SECONDS)
        {
            let message = format!("`wait_seconds` must be 0 to {MAX_WAIT_SECONDS}");
            return Err(ApiError::invalid_argument(message));
        }
        Ok(self.wait_seconds.map(Duration::from_secs))
    }
}

/// A tool call, for all APIs that offer it.
pub(super) struct ToolCalling<'a> {
    pub(super) caller: &'a RunCaller,
    pub(super) state: &'a ApiState,
    pub(super) name: &'a str,
    /// The answered question that approved the call.
    pub(super) approval: Option<ApprovalReference>,
}

/// An idempotency key and its scope.
#[derive(Clone, Copy)]
pub(super) struct CallKey<'a> {
    pub(super) key: &'a str,
    pub(super) scope: KeyScope,
}

/// Parses the key scope header.
fn scope_of(headers: &HeaderMap) -> ApiResult<Option<KeyScope>> {
    let Some(named) = single_header(headers, KEY_SCOPE_HEADER)? else {
        return Ok(None);
    };
    let scope = KeyScope::parse(named);
    let message = "`Idempotency-Key-Scope` must be `run` or `conversation`";
    scope
        .map(Some)
        .ok_or_else(|| ApiError::invalid_argument(message))
}

/// Parses the header with the question that approved the call.
fn approval_of(headers: &HeaderMap) -> ApiResult<Option<ApprovalReference>> {
    let Some(named) = single_header(headers, APPROVED_BY_HEADER)? else {
        return Ok(None);
    };
    let approval = named.split_once('/').and_then(|(run_id, interaction_id)| {
        Some(ApprovalReference {
            run_id: run_id.parse().ok()?,
            interaction_id: interaction_id.to_owned(),
        })
    });
    let message = "`Approved-By` must be `{run_id}/{interaction_id}` of an answered question";
    approval
        .map(Some)
        .ok_or_else(|| ApiError::invalid_argument(message))
}

impl ToolCalling<'_> {
    /// Calls the tool. Checks the grant, the unchanged definition, the parameters and the idempotency key.
    pub(super) async fn call(
        &self,
        parameters: &JsonObject,
        key: Option<CallKey<'_>>,
    ) -> ApiResult<Value> {
        if let Some(recorded) = self.answer_from_record(parameters, key).await? {
            return Ok(recorded);
        }
        let call = self.audited_call();
        let amended = self.amended_tool(parameters, key).await?;
        let (caller, state) = (self.caller, self.state);
        let (mut host_call, granted) = if let Some(amended) = &amended {
            let begun = HostCall::begin_by(caller, state, call, AMENDED).await?;
            (begun, &amended.resource)
        } else {
            let permission: Result<&ToolResource, NotGranted> =
                caller.grant.snapshot.tool(self.name, ToolOperation::Call);
            let approval = self.approval.as_ref();
            HostCall::begin_approved(caller, state, call, permission, approval).await?
        };
        host_call.trace_tool(self.name, key.map(|key| key.key));
        // Held by the call until its end.
        if let Err(refused) = host_call.take_slot(CallKind::Tool) {
            return host_call.end(Err(refused));
        }
        // After the permit: a refused call must not reserve a budget.
        if let Err(refused) = host_call.reserve(Spend::of_tool(self.name)).await {
            return host_call.end(Err(refused));
        }
        let approvals = amended.as_ref().map(|amended| amended.approvals.clone());
        let called = self
            .call_granted(&host_call, granted, approvals, parameters, key)
            .await;
        // A tool error is a result: the call itself has succeeded.
        if let Ok(result) = &called {
            host_call.add_bytes(result.to_string().len());
            if result.get("is_error") == Some(&Value::Bool(true)) {
                host_call.trace_mut().note_tool_error();
            }
        }
        host_call.end(called)
    }

    /// `amendments`: those that cover the call of a tool that the snapshot does not grant.
    async fn call_granted(
        &self,
        host_call: &HostCall,
        granted: &ToolResource,
        amendments: Option<Vec<ApprovalId>>,
        parameters: &JsonObject,
        key: Option<CallKey<'_>>,
    ) -> ApiResult<Value> {
        let tool = still_exists(self.state, granted)?;
        let judging = async {
            let fits = tool.check(parameters).await;
            fits.map_err(|faults| ApiError::faults(&faults))
        };
        // Validation of large parameters takes long, so it ends with the run, too.
        host_call.within(judging).await?;
        let registered = self.registered_skill(&tool, parameters).await?;
        let registrar = self.registrar();
        let skills = SkillsOfRun {
            granted: &self.caller.grant.snapshot.resources.skills,
            registered: registered.as_ref(),
            registrar: &registrar,
        };
        let mut token = self.actor_token(host_call, &tool, key).await?;
        let approvals = match amendments {
            Some(amendments) => Some(amendments),
            None => self.covering_approvals(granted, parameters).await?,
        };
        if approvals.is_some() {
            // The run may have lost the token during the wait for an approval.
            token = self.actor_token(host_call, &tool, key).await?;
        }
        let behalf = token.as_ref().map(|token| Behalf {
            workspace: &self.caller.grant.run.workspace,
            token,
        });
        let doing = async {
            let (key, key_of) = match key {
                Some(CallKey { key, scope }) => {
                    (TicketKey::Given(key.to_owned()), self.key_of(scope)?)
                }
                // A repeated read has no further effect. One that needs an approval has a ticket, which counts its use.
                None if is_repeatable(granted.effect) && approvals.is_none() => {
                    // Runs of the same endpoint share concurrency slots of the tool.
                    let origin = CallOrigin {
                        endpoint: self.caller.grant.run.endpoint_id,
                        skills: &skills,
                        key: None,
                        behalf,
                    };
                    let called = self.state.tools.call(&tool, parameters, origin).await?;
                    let checked =
                        checked_result(self.caller, self.state, self.name, called).await?;
                    return Ok(offload(self.caller, self.state, &tool, checked?).await);
                }
                None => {
                    let attempt = self.caller.grant.attempt;
                    (TicketKey::Counted { attempt }, KeyOf::Run)
                }
            };
            let ticketed_call = TicketedCall {
                caller: self.caller,
                state: self.state,
                host_call,
                tool: &tool,
                granted,
                skills: &skills,
                key,
                key_of,
                approvals,
                behalf,
            };
            ticketed_call.call(parameters).await
        };
        // An aborted call has an unknown outcome; `TicketedCall` records it.
        let result = host_call.within::<_, ApiError>(doing).await?;
        // After the result: only a skill that was read counts as activated.
        if let Some(skill) = tool.activates(parameters) {
            self.record_activation(skill).await?;
        }
        Ok(result)
    }

    pub(super) fn audited_call(&self) -> AuditedCall<'_> {
        AuditedCall {
            action: "call_tool",
            resource: self.name,
            operation: "call",
        }
    }

    /// The runs that share the idempotency key.
    fn key_of(&self, scope: KeyScope) -> ApiResult<KeyOf> {
        if scope == KeyScope::Run {
            return Ok(KeyOf::Run);
        }
        let run = &self.caller.grant.run;
        let conversation_key = run.conversation_key.clone().ok_or_else(|| {
            ApiError::invalid_argument(
                "`Idempotency-Key-Scope: conversation` needs a run with a conversation; use the scope `run`",
            )
        })?;
        Ok(KeyOf::Conversation {
            conversation_key,
            agent: run.agent_id,
            tool: self.name.to_owned(),
        })
    }

    /// The skills available to the run.
    fn registrar(&self) -> StoreRegistrar<'_> {
        let grant = &self.caller.grant;
        StoreRegistrar {
            store: self.state.runs.store(),
            run: grant.run.id,
            workspace: &grant.run.workspace,
            agent: grant.snapshot.agent_id,
            at: self.state.runs.clock().now_ms(),
        }
    }

    /// The registered skill that a call reads. It must be the version of the grant.
    async fn registered_skill(
        &self,
        tool: &AvailableTool,
        parameters: &JsonObject,
    ) -> ApiResult<Option<RegisteredPackage>> {
        let snapshot = &self.caller.grant.snapshot;
        let granted = tool.reads_skill(parameters);
        let granted = granted.and_then(|name| snapshot.skill(name).ok());
        let Some((skill, granted)) =
            granted.and_then(|skill| Some((skill, skill.registered.as_ref()?)))
        else {
            return Ok(None);
        };
        let (workspace, store) = (&self.caller.grant.run.workspace, self.state.runs.store());
        let found =
            store
                .agents()
                .find_agent_skill(workspace, snapshot.agent_id, &skill.skill_name);
        let Some(found) = found.await? else {
            let message = "the skill was withdrawn; continue without it";
            return Err(tool_withdrawn("skill_gone", message));
        };
        // The model was granted the description of that version.
        if found.registered.sha256 != granted.sha256 {
            let message =
                "the skill has changed since the run was granted it; the next run has the new one";
            return Err(tool_withdrawn("skill_changed", message));
        }
        Ok(Some(registered_package(found)))
    }

    /// Stores the activation of a skill in conversation state, if the run has such state.
    async fn record_activation(&self, skill: &str) -> ApiResult<()> {
        let snapshot = &self.caller.grant.snapshot;
        let Ok(identity) = snapshot.state_scope(StateScope::Conversation) else {
            return Ok(());
        };
        let activated = ActivateSkill {
            run_id: self.caller.grant.run.id,
            workspace: self.caller.grant.run.workspace.clone(),
            access: StateAccess {
                scope: StateScope::Conversation,
                identity: identity.to_owned(),
            },
            skill_name: skill.to_owned(),
            at: self.state.runs.clock().now_ms(),
        };
        if self.state.runs.store().write(activated).await? {
            Ok(())
        } else {
            Err(ApiError::unauthenticated())
        }
    }
}

/// The granted tool, if its definition is unchanged.
pub(super) fn still_exists(
    state: &ApiState,
    granted: &ToolResource,
) -> ApiResult<Arc<AvailableTool>> {
    let found = state.tools.find(&granted.tool_name);
    // A tool of the same name from another server is another tool.
    let found = found.filter(|tool| tool.resource.source == granted.source);
    let Some(tool) = found else {
        let message = "the tool no longer exists; continue without it";
        return Err(tool_withdrawn("tool_gone", message));
    };
    if tool.resource.parameters == granted.parameters {
        Ok(tool)
    } else {
        let message = "the tool's schema has changed since the run was granted it; the next run has the new one";
        Err(tool_withdrawn("schema_changed", message))
    }
}

/// The parameter schema of a tool. Without a type it is an object.
pub fn schema_of(granted: &ToolResource) -> JsonObject {
    let mut schema = granted.parameters.clone().unwrap_or_default();
    schema.entry("type").or_insert_with(|| json!("object"));
    schema
}

/// The tool no longer matches the grant of the run.
fn tool_withdrawn(reason: &str, message: &str) -> ApiError {
    ApiError::unauthorized(message).with("reason", json!(reason))
}
