//! Model calls that hooks check: requests before everything else, answers before they are delivered.

use std::sync::Arc;

use protocol::JsonObject;
use protocol::hook::{HookFormat, HookMoment, HookValue};
use serde_json::Value;

use super::pipeline::{AnswerBody, CompleteAnswer, ModelFace};
use super::stream_text::StreamText;
use crate::hooks::{HookedCall, check_object};
use runs::grant::Grant;
use runs::hooks::HookSubject;
use web::auth::AuditedCall;
use web::error::ApiResult;
use web::state::ApiState;

/// Members that choose the model and the delivery: these are decided before the hooks.
const FIXED: [&str; 2] = ["model", "stream"];

/// Passes a request through the hooks.
pub(super) async fn check_request<F: ModelFace>(
    hooked: &HookedCall<'_>,
    face: &mut F,
) -> ApiResult<()> {
    if !hooked.applies(HookMoment::ModelRequest) {
        return Ok(());
    }
    let subject = subject_of(hooked, HookMoment::ModelRequest, F::FORMAT);
    let passed = hooked.pass(&subject, face.document(), |value| {
        face.check_document(value)
    });
    if let Some(replaced) = passed.await?? {
        face.set_document(replaced);
    }
    Ok(())
}

/// Passes a complete answer through the hooks.
pub(super) async fn check_answer(
    hooked: &HookedCall<'_>,
    format: HookFormat,
    answer: &mut CompleteAnswer,
) -> ApiResult<()> {
    if !hooked.applies(HookMoment::ModelResponse) {
        return Ok(());
    }
    let subject = subject_of(hooked, HookMoment::ModelResponse, format);
    let passed = hooked.pass(&subject, answer.body.hook_value(), check_object);
    if let Some(replaced) = passed.await?? {
        answer.bytes = replaced.to_string().len();
        answer.body = AnswerBody::Json(replaced);
    }
    Ok(())
}

fn subject_of<'a>(
    hooked: &HookedCall<'a>,
    moment: HookMoment,
    format: HookFormat,
) -> HookSubject<'a> {
    HookSubject {
        format: Some(format),
        ..HookSubject::of_run(moment, hooked.grant, hooked.call.resource)
    }
}

/// Checks the replacement of a request in the format of a provider. `check`: faults of the request as its route
/// reports them.
pub(crate) fn check_replaced_body(
    body: &JsonObject,
    replaced: &Value,
    check: impl Fn(&JsonObject) -> ApiResult<()>,
) -> Result<(), String> {
    let Value::Object(replaced) = replaced else {
        return check_object(replaced);
    };
    for name in FIXED {
        if replaced.get(name) != body.get(name) {
            return Err(format!("the replacement has another `{name}`"));
        }
    }
    let checked = check(replaced);
    checked.map_err(|_| "the replacement is no valid request".to_owned())
}

/// A stream whose text hooks check at its end.
pub(super) struct CheckedStream {
    state: ApiState,
    grant: Arc<Grant>,
    id: String,
    action: &'static str,
    operation: &'static str,
    text: StreamText,
}

impl CheckedStream {
    /// `None`: no hook checks answers.
    pub(super) fn of(hooked: &HookedCall<'_>, grant: &Arc<Grant>) -> Option<Self> {
        let AuditedCall {
            action,
            resource,
            operation,
        } = hooked.call;
        hooked.applies(HookMoment::ModelResponse).then(|| Self {
            state: hooked.state.clone(),
            grant: Arc::clone(grant),
            id: resource.to_owned(),
            action,
            operation,
            text: StreamText::default(),
        })
    }

    /// Adds the text of an item of the provider.
    pub(super) fn add(&mut self, item: &JsonObject) {
        self.text.add(item);
    }

    /// Passes the complete text through the hooks. Text that was sent cannot be replaced, so a replacement refuses the
    /// stream.
    pub(super) async fn check(self) -> ApiResult<()> {
        let hooked = HookedCall {
            grant: &self.grant,
            state: &self.state,
            call: AuditedCall {
                action: self.action,
                resource: &self.id,
                operation: self.operation,
            },
        };
        let subject = subject_of(&hooked, HookMoment::ModelResponse, HookFormat::Text);
        let Some(value) = self.text.value() else {
            let failure = "the text of the stream is too long to be checked";
            hooked.fail(&subject, failure).await??;
            return Ok(());
        };
        hooked
            .pass(&subject, HookValue::Json(&value), |_| Ok(()))
            .await??;
        Ok(())
    }
}
