//! Request bodies of the faces: JSON objects whose large files are taken out before the rest is parsed.

use axum::extract::{FromRequest, Request};
use domain::large_text::PathStep;
use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use client_api::client::body_files::{DOCUMENT_BYTES, EventDocument, ExtractedFiles};
use web::error::{ApiError, ApiResult};
use web::json::{json_bytes_of, parse};
use web::state::ApiState;

/// Paths of files in the bodies of a face.
pub(crate) trait FilePaths {
    fn file_paths() -> Vec<Vec<PathStep>>;
}

/// A body and its files.
pub(crate) struct FaceBody<P> {
    pub(crate) request: RequestMembers,
    pub(crate) files: ExtractedFiles,
    _paths: std::marker::PhantomData<P>,
}

impl<P: FilePaths> FromRequest<ApiState> for FaceBody<P> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> ApiResult<Self> {
        let body = json_bytes_of(request, state, state.event_body_bytes).await?;
        // Before the parse: a large file would be copied by it.
        let document = EventDocument::of(body, &P::file_paths()).await;
        // The same limit as for an event without its files.
        if document.json.len() > DOCUMENT_BYTES {
            let message = "a request has at most 1 MiB without its files; leave out early messages";
            return Err(ApiError::too_large(message));
        }
        Ok(Self {
            request: parse::<JsonObject>(&document.json)?.into(),
            files: document.files,
            _paths: std::marker::PhantomData,
        })
    }
}

/// Members of a request. Null counts as absent, and unknown members are ignored: clients send settings of models,
/// which an agent does not have.
pub(crate) struct RequestMembers(JsonObject);

impl From<JsonObject> for RequestMembers {
    fn from(members: JsonObject) -> Self {
        Self(members)
    }
}

impl RequestMembers {
    /// All members.
    pub(crate) fn members(&self) -> &JsonObject {
        &self.0
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Fault> {
        let read = |value: &'_ Value| value.as_str().is_some();
        self.checked(name, read, "must be a text")
            .map(|value| value.and_then(Value::as_str))
    }

    /// A required text.
    pub(crate) fn required_text(&self, name: &str) -> Result<&str, Fault> {
        let text = self.text(name)?;
        text.ok_or_else(|| Fault::new(format!("/{name}"), "is required"))
    }

    /// False if absent.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Fault> {
        let value = self.checked(name, Value::is_boolean, "must be true or false")?;
        Ok(value.and_then(Value::as_bool).unwrap_or(false))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&JsonObject>, Fault> {
        let value = self.checked(name, Value::is_object, "must be an object")?;
        Ok(value.and_then(Value::as_object))
    }

    /// Empty if absent.
    pub(crate) fn list(&self, name: &str) -> Result<&[Value], Fault> {
        let value = self.checked(name, Value::is_array, "must be a list")?;
        Ok(value.and_then(Value::as_array).map_or(&[], Vec::as_slice))
    }

    fn checked(
        &self,
        name: &str,
        is_valid: impl Fn(&Value) -> bool,
        message: &str,
    ) -> Result<Option<&Value>, Fault> {
        match self.get(name) {
            Some(value) if !is_valid(value) => Err(Fault::new(format!("/{name}"), message)),
            value => Ok(value),
        }
    }
}
