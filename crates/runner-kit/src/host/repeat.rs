//! Repeats of calls that a gateway lost (`docs/protocol.md`, Resumable runners).

use reqwest::header::{IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, Request};

use crate::host::HostError;

/// Last segments of POST routes that only read.
const READS: [&str; 5] = ["search", "retrieve", "count-tokens", "embed", "rerank"];

/// Point in time of a repeated call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepeatTime {
    /// Its token is invalid: only a resume brings a valid one.
    AfterResume,
    /// The gateway restarts, or another one resumes the run.
    Soon,
}

/// Time of the repetition of a failed call; `None`: the caller gets the error.
pub(super) fn repeat_after(error: &HostError, request: &Request) -> Option<RepeatTime> {
    if error.is_run_moved() {
        return Some(RepeatTime::AfterResume);
    }
    // A broken call may have had its effect.
    let has_no_effect = error.is_unsent() || error.is_broken() && is_repeatable(request);
    has_no_effect.then_some(RepeatTime::Soon)
}

/// True if a second execution has no second effect.
fn is_repeatable(request: &Request) -> bool {
    let headers = request.headers();
    match *request.method() {
        Method::GET => true,
        // The second execution of a conditional write would report a conflict with the first one.
        Method::PUT | Method::DELETE => {
            !headers.contains_key(IF_MATCH) && !headers.contains_key(IF_NONE_MATCH)
        }
        _ => {
            let segments = request.url().path_segments();
            let last = segments.and_then(|mut segments| segments.next_back());
            headers.contains_key("idempotency-key")
                // The body of a child run has a key.
                || last.is_some_and(|last| READS.contains(&last) || last == "child-runs")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_only_calls_without_second_effect() {
        let request = |method: &str, path: &str, header: &str| {
            let url = format!("http://127.0.0.1/host/v1{path}");
            let mut request = Request::new(method.parse().unwrap(), url.parse().unwrap());
            if !header.is_empty() {
                let name: reqwest::header::HeaderName = header.parse().unwrap();
                request.headers_mut().insert(name, "x".parse().unwrap());
            }
            request
        };
        for (method, path, header, expected) in [
            ("GET", "/run", "", true),
            ("PUT", "/state/actor/k", "", true),
            ("PUT", "/state/actor/k", "if-match", false),
            ("PUT", "/storage/plugin/k", "if-none-match", false),
            ("DELETE", "/state/actor/k", "", true),
            ("POST", "/tools/search/call", "", false),
            ("POST", "/tools/t/call", "idempotency-key", true),
            ("POST", "/models/m/invoke", "", false),
            ("POST", "/models/m/count-tokens", "", true),
            ("POST", "/history/search", "", true),
            ("POST", "/child-runs", "", true),
            ("POST", "/steering/pull", "", false),
            ("POST", "/artifacts", "", false),
        ] {
            let request = request(method, path, header);
            assert_eq!(is_repeatable(&request), expected, "{method} {path}");
        }
    }
}
