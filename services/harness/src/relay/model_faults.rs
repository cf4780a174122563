//! Failed model requests, as the relay observes them. Harnesses retry them silently or present the error as their
//! answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use runner_kit::{ResultSender, results};
use serde_json::Value;

use crate::shorten::cut;

/// Maximum failed requests that one run logs.
const MAX_LOGGED: u32 = 100;
const REASON_BYTES: usize = 500;
/// Length of the prefix of an error message that identifies it in an answer.
const RECOGNIZED_CHARS: usize = 60;

/// Failed requests of one run. Clones share them.
#[derive(Clone)]
pub(crate) struct ModelFaults {
    requests: Arc<Mutex<ModelRequests>>,
    out: ResultSender,
}

#[derive(Debug, Default)]
struct ModelRequests {
    /// Failure of the last request; `None` after a success.
    failed: Option<ModelFault>,
    /// True after a successful request of this turn.
    has_answer: bool,
    logged: u32,
}

#[derive(Clone, Debug)]
struct ModelFault {
    status: StatusCode,
    message: String,
}

impl ModelFaults {
    pub(crate) fn new(out: ResultSender) -> Self {
        Self {
            requests: Arc::default(),
            out,
        }
    }

    /// Forgets the requests of earlier turns.
    pub(crate) fn begin_turn(&self) {
        let mut requests = self.requests();
        (requests.failed, requests.has_answer) = (None, false);
    }

    /// Records a successful request.
    pub(crate) fn record_success(&self) {
        let mut requests = self.requests();
        (requests.failed, requests.has_answer) = (None, true);
    }

    /// Records and logs a failed request, with the retry delay that the provider requests.
    pub(crate) async fn record_failure(
        &self,
        status: StatusCode,
        retry_after: Option<&str>,
        body: &[u8],
    ) {
        let message = message_of(body);
        // The lock ends before the await below.
        let logged = {
            let mut requests = self.requests();
            let (status, message) = (status, message.clone());
            requests.failed = Some(ModelFault { status, message });
            requests.logged += 1;
            requests.logged
        };
        let code = status.as_u16();
        let next = retry_after.and_then(|seconds| seconds.trim().parse::<f64>().ok());
        let next = next.map_or_else(String::new, |seconds| {
            format!(", next try in {seconds:.0} s")
        });
        let text = match logged {
            ..MAX_LOGGED => format!("the provider answers {code}{next}: {message}"),
            MAX_LOGGED => "more requests to the model fail, which is not logged".to_owned(),
            _ => return,
        };
        self.out.send(results::log(text)).await;
    }

    /// Reason for the failure of a turn with this text; `None` if the turn succeeded.
    pub(crate) fn explain(&self, text: &str) -> Option<String> {
        let requests = self.requests();
        let ModelFault { status, message } = requests.failed.clone()?;
        // Harnesses cut the message or quote it as JSON.
        let beginning: String = message.chars().take(RECOGNIZED_CHARS).collect();
        let repeats = text.contains(&beginning) || text.contains(&beginning.replace('"', "\\\""));
        // Auxiliary requests, such as those for titles, may fail during a successful turn.
        if requests.has_answer && !repeats {
            return None;
        }
        let code = status.as_u16();
        Some(format!("the provider answered {code}: {message}"))
    }

    // A panic cannot leave the record inconsistent, so a poisoned lock is usable.
    fn requests(&self) -> MutexGuard<'_, ModelRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Message of an error body, or the complete body.
fn message_of(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let read: Value = serde_json::from_str(&text).unwrap_or_default();
    let error = &read["error"];
    let message = error["message"].as_str().or_else(|| error.as_str());
    let message = message.unwrap_or(text.trim());
    let message = if message.is_empty() {
        "no reason"
    } else {
        message
    };
    cut(message, REASON_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::testing::results_of;

    const BODY: &[u8] = br#"{"error":{"message":"the \"prompt\" is too long for this model"}}"#;

    #[tokio::test]
    async fn logs_status_and_next_try() {
        let results = results_of(|out| async move {
            let faults = ModelFaults::new(out);
            let limited = StatusCode::TOO_MANY_REQUESTS;
            faults
                .record_failure(limited, Some("39"), b"slow down")
                .await;
            for _ in 0..300 {
                let bad = StatusCode::BAD_REQUEST;
                faults.record_failure(bad, None, BODY).await;
            }
        });
        let results = results.await;
        let texts = results.iter().filter_map(|it| it.data["text"].as_str());
        let texts: Vec<_> = texts.collect();
        assert_eq!(
            texts[0],
            "the provider answers 429, next try in 39 s: slow down"
        );
        assert!(texts[1].starts_with("the provider answers 400: the \"prompt\""));
        assert_eq!(texts.len(), 100);
    }

    #[tokio::test]
    async fn explains_turns_that_end_with_the_error() {
        results_of(|out| async move {
            let faults = ModelFaults::new(out);
            let fail = async || {
                faults
                    .record_failure(StatusCode::BAD_REQUEST, None, BODY)
                    .await;
            };
            let repeated = "Error code: 400 - the \"prompt\" is too long for this model";
            let quoted = r#"{"message": "the \"prompt\" is too long for this model"}"#;
            assert_eq!(faults.explain(repeated), None);
            fail().await;
            // No request has succeeded.
            let reason = faults.explain("Something went wrong.").unwrap();
            assert!(reason.starts_with("the provider answered 400: the"));
            // An error after an answer, as of a second step or of a title.
            faults.record_success();
            assert_eq!(faults.explain(repeated), None);
            fail().await;
            assert_eq!(faults.explain("The answer."), None);
            assert!(faults.explain(repeated).is_some());
            assert!(faults.explain(quoted).is_some());
            faults.begin_turn();
            assert_eq!(faults.explain(repeated), None);
        })
        .await;
    }
}
