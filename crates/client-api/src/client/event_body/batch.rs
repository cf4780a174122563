//! The body of a batch of CloudEvents.

use std::fmt;

use axum::extract::{FromRequest, Request};
use domain::json_text::check_json_text;
use domain::large_text::PathStep::{Each, Member};
use protocol::admin::Fault;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{EventFormat, PostedEvent, bounded, from_structured};
use crate::client::body_files::{
    DOCUMENT_BYTES, EventDocument, ExtractedFiles, event_body_limit, in_envelope,
};
use web::error::ApiError;
use web::json::{media_type, parse_part, read_json_of, syntax_fault};
use web::state::ApiState;

/// Maximum number of events in a batch.
const BATCH_EVENTS: usize = 100;

/// Events of a batch of CloudEvents, in order.
pub(crate) struct EventBatch(pub(crate) Vec<PostedEvent>);

impl EventBatch {
    pub(super) async fn read(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        let body = read_json_of(request, state, event_body_limit(state)).await?;
        let document = EventDocument::of(body, &in_envelope(&[Each, Member("data")])).await;
        read_batch(&document.json, &document.files).map(Self)
    }
}

impl FromRequest<ApiState> for EventBatch {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        let media_type = media_type(request.headers());
        if !["application/cloudevents-batch+json", "application/json"].contains(&&*media_type) {
            let message = "send the batch with `Content-Type: application/cloudevents-batch+json`";
            return Err(ApiError::invalid_argument(message));
        }
        Self::read(request, state).await
    }
}

/// The first values of a list, one more than a batch allows. Further values are skipped.
struct CappedList(Vec<Box<RawValue>>);

impl<'de> Deserialize<'de> for CappedList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;

        impl<'de> Visitor<'de> for Values {
            type Value = CappedList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CappedList, A::Error> {
                let mut values = Vec::new();
                while values.len() <= BATCH_EVENTS
                    && let Some(value) = list.next_element()?
                {
                    values.push(value);
                }
                // The rest is read for the syntax check; `IgnoredAny` allocates nothing.
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(CappedList(values))
            }
        }

        deserializer.deserialize_seq(Values)
    }
}

/// JSON batch format: a list of structured events.
fn read_batch(bytes: &[u8], files: &ExtractedFiles) -> Result<Vec<PostedEvent>, ApiError> {
    // Bounds depth and number of values before anything is allocated for them.
    check_json_text(bytes).map_err(|fault| ApiError::invalid("", fault.to_string()))?;
    let CappedList(list) = serde_json::from_slice(bytes).map_err(|error| {
        let fault = if error.is_data() {
            Fault::new("", "must be a JSON list of CloudEvents")
        } else {
            syntax_fault(&error)
        };
        ApiError::faults(&[fault])
    })?;
    if list.len() > BATCH_EVENTS {
        let message = format!("has more than {BATCH_EVENTS} events; send several batches");
        return Err(ApiError::invalid("", message));
    }
    let mut faults = Vec::new();
    let mut batch = Vec::with_capacity(list.len());
    for (index, text) in list.iter().enumerate() {
        let pointer = format!("/{index}");
        match parse_part(text.get().as_bytes()).and_then(from_structured) {
            Ok(event) => {
                let limit_text = "1 MiB without its files";
                // The limit of a single event, so that a batch admits no larger ones.
                bounded(text.get().len(), &event, DOCUMENT_BYTES, limit_text)?;
                batch.push(PostedEvent {
                    event,
                    // All events share the files of the body; each refers to its own.
                    files: files.clone(),
                    form: EventFormat::Structured,
                    pointer,
                });
            }
            Err(fault) => faults.push(fault.under(&pointer)),
        }
    }
    if faults.is_empty() {
        Ok(batch)
    } else {
        Err(ApiError::faults(&faults))
    }
}
