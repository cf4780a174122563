//! A runner that answered 202 and appends its results across crashes of the gateway.

use reqwest::Method;
use serde_json::{Value, json};

use super::load::{GatewayGone, results};
use crate::support::client::{Client, send};
use crate::support::script::Run;

/// Number of results per call.
const RESULTS_PER_CALL: usize = 5;

/// All results of one run, and the number of acknowledged ones.
#[derive(Clone, Debug)]
pub struct PendingResults {
    pub run_id: String,
    token: String,
    results: Vec<Value>,
    accepted: usize,
    /// True when the run accepts no further results.
    is_over: bool,
}

impl PendingResults {
    /// `host`: the host API members of the run request.
    pub fn new(run_id: &str, event_id: &str, host: &Value) -> Self {
        let run = Run {
            id: run_id.to_owned(),
            event_id: event_id.to_owned(),
            attempt: 1,
            after: 0,
        };
        let parsed = |result: &String| serde_json::from_str(result).unwrap();
        Self {
            run_id: run_id.to_owned(),
            token: host["token"].as_str().unwrap().to_owned(),
            results: results(&run).iter().map(parsed).collect(),
            accepted: 0,
            is_over: false,
        }
    }

    /// True if a result was acknowledged; then the run must not be orphaned.
    pub fn is_acknowledged(&self) -> bool {
        self.accepted > 0
    }

    /// Appends the unacknowledged results until all are acknowledged or the run is over.
    pub async fn append_rest(&mut self, client: &Client) -> Result<(), GatewayGone> {
        let host = Client::new(&format!("{}/host/v1", client.url), &self.token);
        while !self.is_over && self.accepted < self.results.len() {
            let until = self.results.len().min(self.accepted + RESULTS_PER_CALL);
            let some = json!({"results": self.results[self.accepted..until]});
            let request = host.request(Method::POST, "/run/results").json(&some);
            let answer = send(request).await.map_err(|_| GatewayGone)?;
            match answer.status {
                200 => {
                    // Larger than sent, if the previous response was lost.
                    let through = answer.body["accepted_through"].as_u64().unwrap();
                    self.accepted = usize::try_from(through).unwrap();
                }
                // The run has ended, or will end because its gateway crashed before it received the 202.
                401 | 409 => self.is_over = true,
                _ => return Err(GatewayGone),
            }
        }
        Ok(())
    }
}
