//! One signed request to a receiver.

use std::time::Duration;

use egress::upstream::retry_after;
use egress::{EgressError, read_up_to};
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use protocol::webhook::WebhookMessage;

use crate::deps::RunDeps;
use secrets::signature::SigningSecret;

/// Time from the dial to the head of the response.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a response that are read, so that its connection can be used again.
const MAX_RESPONSE: usize = 16 * 1024;
/// Time for them. The status has decided already.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A webhook without a URL, or with secrets of another master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the webhook has no URL, or its secret cannot be decrypted with this master key")]
pub(super) struct Unsendable;

/// Address and signing secrets of a webhook.
pub(super) struct Receiver {
    pub(super) url: String,
    pub(super) secrets: Vec<SigningSecret>,
}

/// The head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiverAnswer {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
}

impl ReceiverAnswer {
    pub(super) fn is_success(self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(super) fn is_gone(self) -> bool {
        self.status == StatusCode::GONE.as_u16()
    }

    /// The reason why the message is not delivered.
    pub(super) fn fault(self) -> Option<String> {
        match self.status {
            200..300 => None,
            300..400 => Some(format!(
                "the receiver answered {}; redirects are not followed",
                self.status
            )),
            status => Some(format!("the receiver answered {status}")),
        }
    }
}

impl Receiver {
    /// Posts the message. An error is a text without URL and secret.
    pub(super) async fn send(
        &self,
        deps: &RunDeps,
        message: &WebhookMessage,
    ) -> Result<ReceiverAnswer, String> {
        let body = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        let now = deps.clock.now_seconds();
        let signatures = self.secrets.iter();
        let signatures: Vec<_> = signatures
            .map(|secret| secret.sign(&message.id, now, &body))
            .collect();
        let sending = async {
            let url = deps.egress.check_url(&self.url)?;
            let request = deps.egress.request(Method::POST, &url)?;
            let request = request
                .header(CONTENT_TYPE, "application/json")
                .header("webhook-id", &message.id)
                .header("webhook-timestamp", now.to_string())
                .header("webhook-signature", signatures.join(" "))
                .body(body);
            deps.egress.send(request).await
        };
        let response = match tokio::time::timeout(TIMEOUT, sending).await {
            Ok(sent) => sent.map_err(|error: EgressError| error.in_words())?,
            Err(_) => return Err(EgressError::Timeout.in_words()),
        };
        let answered = ReceiverAnswer {
            status: response.status().as_u16(),
            retry_after: retry_after(response.headers()),
        };
        let reading = read_up_to(response, MAX_RESPONSE);
        // The content says nothing, so a slow or broken one is no failure.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
        Ok(answered)
    }
}
