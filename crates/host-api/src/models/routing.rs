//! Calls of a granted model over the candidates of its route. A model without a route is its only candidate.
//!
//! Each attempt is a call of its own, with an audit entry, a reservation and a settlement for its candidate: a provider
//! may bill an attempt that failed. The grant of the route covers its candidates here only.

use std::time::{Duration, Instant};

use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use http::{HeaderName, HeaderValue};
use protocol::resources::ModelOperation;

use crate::host_call::{AttemptError, HostCall};
use egress::upstream::UpstreamError;
use models::{
    AfterFailure, Chunks, Model, Payment, ProviderRequest, RouteCandidate, after_failure,
};
use runs::call_limits::CallKind;
use web::auth::{AuditedCall, RunCaller};
use web::error::{ApiError, ApiResult};
use web::state::ApiState;

/// Header with the id of the model that answers.
const ANSWERED_BY: HeaderName = HeaderName::from_static("x-runnel-model");

/// Attempts of one request.
pub(crate) struct RoutedCall<'a> {
    caller: &'a RunCaller,
    state: &'a ApiState,
    id: &'a str,
    action: &'static str,
    operation: ModelOperation,
    candidates: Vec<RouteCandidate<'a>>,
    /// Index of the candidate of the current attempt.
    current: usize,
    /// Repeated attempts of this candidate.
    repeats: u32,
    /// Failure for the caller if no candidate answers. A failed provider explains more than an excluded one.
    failure: Option<ApiError>,
}

impl<'a> RoutedCall<'a> {
    pub(crate) fn new(
        caller: &'a RunCaller,
        state: &'a ApiState,
        id: &'a str,
        action: &'static str,
        operation: ModelOperation,
    ) -> Self {
        let key = conversation_key(caller);
        Self {
            caller,
            state,
            id,
            action,
            operation,
            candidates: state.models.candidates(id, &key, Instant::now()),
            current: 0,
            repeats: 0,
            failure: None,
        }
    }

    /// Begins the audited call of the current attempt.
    pub(crate) async fn begin(&self) -> ApiResult<(HostCall, RouteCandidate<'a>)> {
        let Self {
            caller,
            state,
            id,
            action,
            operation,
            ..
        } = *self;
        let mut call = begin_granted(caller, state, action, id, operation).await?;
        if let Some(candidate) = self.candidates.get(self.current) {
            call.trace_model(action, candidate.id, candidate.model);
            return Ok((call, *candidate));
        }
        // The catalog names why there is none.
        let gone = state.models.find(id).err();
        call.end(Err(gone.map_or_else(ApiError::internal, Into::into)))
    }

    /// True if another candidate may be called after the current one.
    pub(crate) fn has_next(&self) -> bool {
        self.current + 1 < self.candidates.len()
    }

    /// Opens a stream. With another candidate left, waits for the first item, because its error must not reach the
    /// caller.
    pub(crate) async fn open(
        &self,
        model: &Model,
        request: ProviderRequest,
        paid: &Payment,
    ) -> Result<Chunks, UpstreamError> {
        if !self.has_next() {
            return model.provider.stream(request, paid).await;
        }
        let opened = async {
            let mut items = model.provider.stream(request, paid).await?;
            let first = items.next().await;
            let ended = || UpstreamError::Lost("the stream had no event".to_owned());
            let first = first.unwrap_or_else(|| Err(ended()))?;
            Ok(stream::iter([Ok(first)]).chain(items).boxed())
        };
        match self
            .state
            .models
            .route(self.id)
            .and_then(|route| route.first_byte)
        {
            None => opened.await,
            Some(limit) => tokio::time::timeout(limit, opened)
                .await
                .unwrap_or(Err(UpstreamError::Timeout)),
        }
    }

    /// Ends a failed attempt. `Ok`: begin the next one. `Err`: the failure for the caller.
    pub(crate) async fn failed(&mut self, call: HostCall, error: AttemptError) -> ApiResult<()> {
        let step = self.step(&error);
        let reason = match &error {
            AttemptError::Upstream(error) => error.reason(),
            AttemptError::Excluded(_) | AttemptError::Final(_) => "excluded",
        };
        let is_exclusion = matches!(step, AfterFailure::Exclude);
        let failure = call.end::<()>(Err(error.into())).err();
        let failure = failure.unwrap_or_else(ApiError::internal);
        match step {
            AfterFailure::Report => return Err(failure),
            AfterFailure::Repeat { wait } => {
                self.repeats += 1;
                tokio::time::sleep(wait).await;
                return Ok(());
            }
            AfterFailure::Next { cooldown } => self.rest(cooldown),
            AfterFailure::Exclude => {}
        }
        if !is_exclusion || self.failure.is_none() {
            self.failure = Some(failure);
        }
        if !self.has_next() {
            return Err(self.failure.take().unwrap_or_else(ApiError::internal));
        }
        let failed = self.candidates[self.current].id;
        self.current += 1;
        self.repeats = 0;
        let next = self.candidates[self.current].id;
        let run = self.caller.grant.run.id;
        tracing::warn!(
            run.id = %run,
            model.id = failed,
            reason,
            "model {failed} of route {} did not answer ({reason}), calling {next}",
            self.id
        );
        Ok(())
    }

    fn step(&self, error: &AttemptError) -> AfterFailure {
        match error {
            AttemptError::Final(_) => AfterFailure::Report,
            AttemptError::Excluded(_) => AfterFailure::Exclude,
            AttemptError::Upstream(failure) => match after_failure(failure, self.repeats) {
                // Without another candidate the caller decides whether to wait.
                AfterFailure::Repeat { wait } if !self.has_next() => {
                    AfterFailure::Next { cooldown: wait }
                }
                step => step,
            },
        }
    }

    fn rest(&self, cooldown: Duration) {
        if let Some(candidate) = self.candidates.get(self.current)
            && self.candidates.len() > 1
            && !cooldown.is_zero()
        {
            let until = Instant::now() + cooldown;
            self.state.models.rest(candidate.id, until);
        }
    }

    /// Names the model that answers, and ends its cool-down.
    pub(crate) fn answered(&self, candidate: RouteCandidate<'_>, response: Response) -> Response {
        self.state.models.wake(candidate.id);
        answered_by(candidate.id, response)
    }
}

/// Adds the header with the answering model.
pub(crate) fn answered_by(model: &str, mut response: Response) -> Response {
    // An id that no header can carry is left out.
    if let Ok(id) = HeaderValue::from_bytes(model.as_bytes()) {
        response.headers_mut().insert(ANSWERED_BY, id);
    }
    response
}

/// Key of the run's conversation, or of the run without one.
pub(crate) fn conversation_key(caller: &RunCaller) -> String {
    let (run, snapshot) = (&caller.grant.run, &caller.grant.snapshot);
    match &snapshot.conversation {
        Some(one) => format!(
            "{}\n{}\n{}\n{}",
            run.workspace, one.bot_id, one.conversation_id, one.thread_id
        ),
        None => run.id.to_string(),
    }
}

/// Begins an audited call to a granted model.
async fn begin_granted(
    caller: &RunCaller,
    state: &ApiState,
    action: &'static str,
    id: &str,
    operation: ModelOperation,
) -> ApiResult<HostCall> {
    let call = AuditedCall {
        action,
        resource: id,
        operation: operation.as_str(),
    };
    let permission = caller.grant.snapshot.model(id, operation).map(drop);
    let (mut call, ()) = HostCall::begin(caller, state, call, permission).await?;
    // Held by the call until its end.
    if let Err(refused) = call.take_slot(CallKind::Model) {
        return call.end(Err(refused));
    }
    Ok(call)
}

/// Begins an audited call to one granted model: a route is refused.
pub(crate) async fn begin_call<'a>(
    caller: &RunCaller,
    state: &'a ApiState,
    action: &'static str,
    id: &str,
    operation: ModelOperation,
) -> ApiResult<(HostCall, &'a Model)> {
    let mut call = begin_granted(caller, state, action, id, operation).await?;
    match state.models.find(id) {
        Ok(model) => {
            call.trace_model(action, id, model);
            Ok((call, model))
        }
        Err(gone) => call.end(Err(gone.into())),
    }
}
