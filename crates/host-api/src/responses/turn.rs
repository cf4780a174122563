//! One turn of a conversation over the Responses API: references to earlier turns, and the answer for later ones.

use std::io::{ErrorKind, Write};

use llm_formats::chat::responses::keeps_items;
use protocol::JsonObject;
use serde_json::{Value, json};

use web::auth::RunCaller;
use web::error::{ApiError, ApiResult};
use web::response_store::{AnsweredRequest, RUN_BYTES, ResponseOwner};
use web::state::ApiState;

/// A request whose references are resolved.
pub(super) struct Turn {
    /// Number of items of earlier turns at the head of `input`.
    earlier: usize,
    pub(super) owner: ResponseOwner,
    pub(super) previous: Option<String>,
    /// `None`: the client wants nothing kept.
    pub(super) stored: Option<StoredTurn>,
}

/// A request whose answer is kept for later ones.
pub(super) struct StoredTurn {
    state: ApiState,
    owner: ResponseOwner,
    previous: Option<String>,
    input: Option<String>,
}

impl StoredTurn {
    /// Keeps the answer for references of later requests.
    pub(super) fn keep(self, response: &Value, unsent_reasoning: Option<String>) {
        let answered = AnsweredRequest {
            previous: self.previous,
            input: self.input,
            response,
            unsent_reasoning,
        };
        self.state.response_store().keep(self.owner, answered);
    }
}

impl Turn {
    /// Replaces the references of a request by the items to which they refer.
    pub(super) fn of(
        caller: &RunCaller,
        state: &ApiState,
        request: &mut JsonObject,
    ) -> ApiResult<Self> {
        let (grant, now) = (&caller.grant, state.runs.clock().now_ms());
        let owner = ResponseOwner::of(grant.run.id, grant.deadline_at(), now);
        let store = state.response_store();
        // Before `input` is stored, so that a stored turn has no references.
        if let Some(input) = request.get_mut("input") {
            store.resolve(owner, input);
        }
        let previous = match request.get("previous_response_id") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => {
                return Err(ApiError::invalid("/previous_response_id", "must be a text"));
            }
        };
        if let Some(Value::String(text)) = request.get("input") {
            let items = json!([{"role": "user", "content": text}]);
            request.insert("input".to_owned(), items);
        }
        // Built before the earlier turns are inserted: each response stores its own items only.
        let stored = keeps_items(request).then(|| StoredTurn {
            state: state.clone(),
            owner,
            previous: previous.clone(),
            input: request.get("input").and_then(bounded_json),
        });
        let mut earlier = 0;
        if let Some(id) = &previous {
            let mut items = store.conversation(owner, id).ok_or_else(unknown_previous)?;
            earlier = items.len();
            if let Some(Value::Array(newer)) = request.get_mut("input") {
                items.append(newer);
                *newer = items;
            }
            request.remove("previous_response_id");
        }
        Ok(Self {
            earlier,
            owner,
            previous,
            stored,
        })
    }

    /// Maps a pointer into the resolved request to the client's request.
    pub(super) fn pointer(&self, pointer: &str) -> String {
        let item = pointer.strip_prefix("/input/").filter(|_| self.earlier > 0);
        let Some(item) = item else {
            return pointer.to_owned();
        };
        let (n, rest) = item.split_once('/').unwrap_or((item, ""));
        let n = n.parse::<usize>().ok();
        match n.map(|n| n.checked_sub(self.earlier)) {
            Some(Some(n)) if rest.is_empty() => format!("/input/{n}"),
            Some(Some(n)) => format!("/input/{n}/{rest}"),
            Some(None) => "/previous_response_id".to_owned(),
            None => pointer.to_owned(),
        }
    }
}

fn unknown_previous() -> ApiError {
    let message = "names a response that this gateway does not hold for the run: it is not one of the run's own newest \
      responses; send the full conversation as input";
    ApiError::invalid("/previous_response_id", message)
        .with("reason", json!("previous_response_not_found"))
}

/// Serializes a value. `None`: it is too large to keep.
fn bounded_json(value: &Value) -> Option<String> {
    let mut writer = BoundedWriter(Vec::new());
    serde_json::to_writer(&mut writer, value).ok()?;
    String::from_utf8(writer.0).ok()
}

/// Buffer with a maximum size.
struct BoundedWriter(Vec<u8>);

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // Stops the serializer early: a larger input is not stored anyway.
        if self.0.len() + bytes.len() > RUN_BYTES {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::RunId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn pointers_refer_to_the_items_of_the_client() {
        let turn = Turn {
            earlier: 3,
            owner: ResponseOwner::of(RunId(Uuid::nil()), 0, 0),
            previous: None,
            stored: None,
        };
        for (resolved, of_client) in [
            ("/input/4/content/0", "/input/1/content/0"),
            ("/input/3", "/input/0"),
            ("/input/2/content", "/previous_response_id"),
            ("/tools/4", "/tools/4"),
            ("/input", "/input"),
        ] {
            assert_eq!(turn.pointer(resolved), of_client);
        }
    }
}
