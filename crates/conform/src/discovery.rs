//! Checks of discovery.

use domain::json_text::check_json_text;
use domain::manifest::{AcceptedManifest, Discovered, validate_manifest_list, validate_manifests};
use http::StatusCode;
use protocol::admin::{EndpointMode, Fault};
use serde_json::Value;

use super::check_harness::{CheckHarness, SignatureKind, in_words};
use super::options::ConformError;
use super::report::{ContractCheck, FindingCollector};
use egress::EgressError;
use egress::read_up_to;
use runner_client::LIST_TIMEOUT;

const LISTS: ContractCheck = ContractCheck {
    id: "discovery.lists",
    expected: "a signed list call is answered 200 with {\"runners\": [manifest…]}, at least one",
    advice: "serve GET {base}/runners, or the action list_runners at a single URL; an endpoint that \
             cannot list is registered with its manifests (--manifests)",
};
const RUNNER_IDS: ContractCheck = ContractCheck {
    id: "discovery.runner_ids",
    expected: "each id is plugin:{author}/{plugin}/{runner}, or {author}/{plugin}, and is listed once",
    advice: "give each runner an id of parts that are not empty and hold no white space",
};
const MANIFESTS: ContractCheck = ContractCheck {
    id: "discovery.manifests",
    expected: "each manifest fits AgentRunnerManifest",
    advice: "mend the field at the pointer; openapi/runner.json has the schema",
};
const PROTOCOL_VERSION: ContractCheck = ContractCheck {
    id: "discovery.protocol_version",
    expected: "protocol_version is \"1\", or absent",
    advice: "serve protocol 1: the gateway lists other versions as incompatible and binds none of them",
};
const DECLARED_NAMES: ContractCheck = ContractCheck {
    id: "discovery.known_words",
    expected: "capabilities and permissions are those that the gateway knows",
    advice: "correct the name: the gateway ignores an unknown capability and never grants an unknown permission",
};
const STABLE: ContractCheck = ContractCheck {
    id: "discovery.stable",
    expected: "two list calls name the same ids",
    advice: "keep the ids of runners for ever: agents are bound to them",
};
const HEALTH: ContractCheck = ContractCheck {
    id: "discovery.health",
    expected: "GET {base}/healthz is answered 2xx, where it is served",
    advice: "answer 200 without asking for a signature, or do not serve the route",
};

pub(super) const ALL: [&ContractCheck; 7] = [
    &LISTS,
    &RUNNER_IDS,
    &MANIFESTS,
    &PROTOCOL_VERSION,
    &DECLARED_NAMES,
    &STABLE,
    &HEALTH,
];
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Checks the list. Returns the bindable runners.
pub(super) async fn check(
    check_harness: &CheckHarness,
    book: &mut FindingCollector<'_>,
) -> Result<Vec<AcceptedManifest>, ConformError> {
    let answer = match list(check_harness).await {
        Err(ListFault::Unreachable(error)) => return Err(ConformError::Unreachable(error)),
        Err(ListFault::Refused(error)) => return Err(ConformError::Refused(error)),
        // Manifests of the command line do not need the list call.
        Err(ListFault::Unauthorized(seen)) if check_harness.options.manifests.is_none() => {
            return Err(ConformError::Unauthorized(
                check_harness.redaction.clean(&seen),
            ));
        }
        Err(ListFault::Unauthorized(seen) | ListFault::Invalid(seen)) => Err(seen),
        Ok(answer) => Ok(answer),
    };
    let discovered = match (&check_harness.options.manifests, &answer) {
        (Some(manifests), _) => {
            book.skip(&LISTS, "the manifests were given with --manifests");
            book.skip(&STABLE, "the manifests were given with --manifests");
            validate_manifests(manifests)
        }
        (None, Ok(answer)) => {
            let found = validate_manifest_list(answer);
            check_list(answer, book);
            check_stable(check_harness, answer, book).await;
            found
        }
        // Everything else needs the list.
        (None, Err(seen)) => {
            book.fail(&LISTS, seen);
            return Ok(Vec::new());
        }
    };
    check_manifests(&discovered, book);
    check_health(check_harness, book).await;
    book.skip_open(&[&ALL], "the endpoint has no list");
    Ok(discovered.accepted)
}

enum ListFault {
    Unreachable(EgressError),
    Refused(EgressError),
    /// 401 or 403: the secrets differ, or the clocks.
    Unauthorized(String),
    Invalid(String),
}

/// With the timeout of a registration.
async fn list(check_harness: &CheckHarness) -> Result<Value, ListFault> {
    let listed = tokio::time::timeout(LIST_TIMEOUT, list_unbounded(check_harness)).await;
    listed.unwrap_or_else(|_| {
        let seconds = LIST_TIMEOUT.as_secs();
        Err(ListFault::Invalid(format!(
            "no complete list within {seconds} s"
        )))
    })
}

async fn list_unbounded(check_harness: &CheckHarness) -> Result<Value, ListFault> {
    let call = check_harness.options.endpoint.list_call();
    let answer = check_harness.send(&call, &SignatureKind::Right).await;
    let answer = answer.map_err(|error| match error {
        EgressError::Connect(_) => ListFault::Unreachable(error),
        EgressError::Blocked { .. } => ListFault::Refused(error),
        EgressError::Timeout | EgressError::Io(_) => ListFault::Invalid(in_words(&error)),
    })?;
    let invalid = |seen: String| ListFault::Invalid(seen);
    if answer.status() != StatusCode::OK {
        // The body may name the fault, so it is read before the report.
        let refused = check_harness.refused(answer).await;
        return Err(match refused.status.as_u16() {
            401 | 403 => ListFault::Unauthorized(refused.in_words()),
            _ => invalid(refused.in_words()),
        });
    }
    let body = read_up_to(answer, MAX_BYTES + 1).await;
    // An author should see the limit, not a JSON error at its end.
    let body = body.map_err(|error| invalid(in_words(&error)))?;
    if body.len() > MAX_BYTES {
        return Err(invalid("the body is larger than 4 MiB".to_owned()));
    }
    check_json_text(&body).map_err(|fault| invalid(format!("the body {fault}")))?;
    serde_json::from_slice(&body).map_err(|error| invalid(format!("the body is no JSON: {error}")))
}

fn check_list(answer: &Value, book: &mut FindingCollector<'_>) {
    match answer.get("runners").and_then(Value::as_array) {
        None => book.fail(&LISTS, "the answer has no list `runners`"),
        Some(runners) if runners.is_empty() => book.fail(&LISTS, "the list is empty"),
        Some(runners) => book.pass(&LISTS, format!("200, {} listed", runners.len())),
    }
}

fn check_manifests(discovered: &Discovered, book: &mut FindingCollector<'_>) {
    let all = discovered.rejected.iter();
    let (ids, others): (Vec<_>, Vec<_>) = all.partition(|fault| fault.pointer.ends_with("/id"));
    // A missing list is reported already.
    let others: Vec<_> = others
        .into_iter()
        .filter(|fault| fault.pointer != "/runners")
        .collect();
    let count = discovered.accepted.len();
    if ids.is_empty() {
        book.pass(&RUNNER_IDS, "each has three parts");
    } else {
        book.fail(&RUNNER_IDS, fault_list(ids));
    }
    if others.is_empty() {
        book.pass(&MANIFESTS, format!("{count} can be bound"));
    } else {
        book.fail(&MANIFESTS, fault_list(others));
    }
    match discovered.incompatible.first() {
        None => book.pass(&PROTOCOL_VERSION, "1"),
        Some(found) => book.fail(&PROTOCOL_VERSION, format!("{} {}", found.id, found.reason)),
    }
    let warnings = discovered.accepted.iter().flat_map(|found| {
        let pointer = format!("/runners/{}", found.index);
        let warnings = found.warnings.iter().cloned();
        // Faults of a manifest are relative to it; the report shows pointers into the list.
        warnings.map(move |fault| Fault::new(format!("{pointer}{}", fault.pointer), fault.message))
    });
    let warnings: Vec<_> = warnings.collect();
    if warnings.is_empty() {
        book.pass(&DECLARED_NAMES, "all are known");
    } else {
        book.warn(&DECLARED_NAMES, fault_list(&warnings));
    }
}

fn fault_list<'a>(faults: impl IntoIterator<Item = &'a Fault>) -> String {
    let each = faults
        .into_iter()
        .map(|fault| format!("{} {}", fault.pointer, fault.message));
    each.collect::<Vec<_>>().join("; ")
}

async fn check_stable(
    check_harness: &CheckHarness,
    first: &Value,
    book: &mut FindingCollector<'_>,
) {
    match list(check_harness).await {
        Err(ListFault::Unauthorized(seen) | ListFault::Invalid(seen)) => {
            book.fail(&STABLE, format!("the second call: {seen}"));
        }
        Err(ListFault::Unreachable(error) | ListFault::Refused(error)) => {
            book.fail(&STABLE, format!("the second call: {}", in_words(&error)));
        }
        Ok(second) if ids(first) == ids(&second) => book.pass(&STABLE, "the same"),
        Ok(second) => {
            let seen = format!("first {:?}, then {:?}", ids(first), ids(&second));
            book.fail(&STABLE, seen);
        }
    }
}

fn ids(answer: &Value) -> Vec<&str> {
    let runners = answer["runners"].as_array();
    let mut ids: Vec<_> = runners
        .into_iter()
        .flatten()
        .filter_map(|runner| runner["id"].as_str())
        .collect();
    // The order of the list is free.
    ids.sort_unstable();
    ids
}

async fn check_health(check_harness: &CheckHarness, book: &mut FindingCollector<'_>) {
    if check_harness.options.endpoint.mode == EndpointMode::SingleUrl {
        book.skip(&HEALTH, "a single URL has no such route");
        return;
    }
    match check_harness.get("healthz").await {
        Ok(status) if status.is_success() => {
            book.pass(&HEALTH, format!("HTTP {}", status.as_u16()));
        }
        Ok(status) if status.is_client_error() || status.as_u16() == 501 => {
            book.skip(&HEALTH, format!("not served (HTTP {})", status.as_u16()));
        }
        Ok(status) => book.warn(&HEALTH, format!("HTTP {}", status.as_u16())),
        Err(error) => book.warn(&HEALTH, error),
    }
}
