//! One signed request to a hook.

use std::io::{ErrorKind, Write};

use egress::{EgressError, read_up_to};
use http::Method;
use http::header::CONTENT_TYPE;
use protocol::hook::{HookAnswer, HookRequest};

use super::{HookSpec, Hooks};

/// Maximum size of a request, in bytes. A larger one is not sent: the hook has failed.
const MAX_REQUEST: usize = 16 * 1024 * 1024;
/// Bytes by which an answer may be larger than its request.
const MORE: usize = 64 * 1024;

impl Hooks {
    /// Posts a request and reads its answer. An error is a text without URL, secret and content.
    pub(super) async fn send(
        &self,
        spec: &HookSpec,
        request: &HookRequest<'_>,
    ) -> Result<HookAnswer, String> {
        let too_large = || format!("the request is larger than {MAX_REQUEST} bytes");
        let size = json_size(request).ok_or_else(too_large)?;
        let max_answer = size + MORE;
        // Before the request is serialized, so that waiting calls hold no copy of their value.
        let permits = u32::try_from((size + max_answer).div_ceil(1024)).unwrap_or(u32::MAX);
        let memory = self.memory.acquire_many(permits).await;
        let _memory = memory.map_err(|_| "the gateway is stopping".to_owned())?;
        let body = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        let now = request.created_at;
        let signature = spec.secret.sign(request.id, now, &body);
        let sending = async {
            let url = self.egress.check_url(spec.url.as_str())?;
            let posting = self.egress.request(Method::POST, &url)?;
            let posting = posting
                .header(CONTENT_TYPE, "application/json")
                .header("webhook-id", request.id)
                .header("webhook-timestamp", now.to_string())
                .header("webhook-signature", signature)
                .body(body);
            self.egress.send(posting).await
        };
        let response = sending.await.map_err(in_words)?;
        let status = response.status().as_u16();
        match status {
            200..300 => {}
            300..400 => {
                return Err(format!(
                    "answered by status {status}; redirects are not followed"
                ));
            }
            _ => return Err(format!("answered by status {status}")),
        }
        // One byte more shows that the answer is too large.
        let answer = read_up_to(response, max_answer + 1)
            .await
            .map_err(in_words)?;
        if answer.len() > max_answer {
            return Err(format!("the answer is larger than {max_answer} bytes"));
        }
        // The error of the parser would quote the answer.
        serde_json::from_slice(&answer).map_err(|_| "the answer is no decision".to_owned())
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is the argument of `map_err`"
)]
fn in_words(error: EgressError) -> String {
    error.in_words()
}

/// Size of the request as JSON. `None`: more than [`MAX_REQUEST`].
fn json_size(request: &HookRequest<'_>) -> Option<usize> {
    let mut counter = SizeCounter(0);
    serde_json::to_writer(&mut counter, request).ok()?;
    Some(counter.0)
}

/// Counts bytes, up to [`MAX_REQUEST`].
struct SizeCounter(usize);

impl Write for SizeCounter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        // Stops the serializer early.
        if self.0 > MAX_REQUEST {
            return Err(ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
