//! Checks of the runner's calls to the host API, over all runs.

use url::{Host, Url};

use super::check_harness::CheckHarness;
use super::report::{ContractCheck, FindingCollector, counted};
use crate::mock_host::{CallOutcome, RecordedCall};

const TOKEN: ContractCheck = ContractCheck {
    id: "callbacks.token",
    expected: "each call carries the run's token: Authorization: Bearer {host.token}",
    advice: "take host.token from this run's request; do not keep tokens across runs",
};
const ROUTES: ContractCheck = ContractCheck {
    id: "callbacks.routes",
    expected: "each call goes to a route of the host API below host.base_url",
    advice: "append the path to host.base_url as it is; openapi/gateway.json lists the routes under /host/v1",
};
const BODIES: ContractCheck = ContractCheck {
    id: "callbacks.bodies",
    expected: "paths, queries and bodies are those of the route",
    advice: "compare the call with openapi/gateway.json; state keys that begin with host. are the gateway's",
};
const GRANTED: ContractCheck = ContractCheck {
    id: "callbacks.granted",
    expected: "calls are made where ctx.context.available_apis lists them as open",
    advice: "ask for it in the manifest's permissions, and look into available_apis first: an agent's policy may close it",
};
const AFTER_END: ContractCheck = ContractCheck {
    id: "callbacks.none_after_terminal",
    expected: "no call comes after the run's terminal",
    advice: "await what you call before you send the terminal: the token dies with it",
};

pub(super) const ALL: [&ContractCheck; 5] = [&TOKEN, &ROUTES, &BODIES, &GRANTED, &AFTER_END];

/// Checks the calls after index `seen`.
pub(super) fn check(check_harness: &CheckHarness, seen: usize, book: &mut FindingCollector<'_>) {
    let calls = check_harness.host.calls_after(seen);
    if calls.is_empty() {
        book.skip_open(&[&ALL], &never_called(check_harness));
        return;
    }
    for check in ALL {
        let mut bad = calls.iter().filter(|call| breaks(call, check));
        match bad.next() {
            None => book.pass(check, counted(calls.len() as u64, "call")),
            Some(call) if *check == GRANTED => book.warn(check, in_words(call)),
            Some(call) => book.fail(check, in_words(call)),
        }
    }
}

/// True if a call after index `seen` was not granted.
pub(super) fn has_refused_call(check_harness: &CheckHarness, seen: usize) -> bool {
    let calls = check_harness.host.calls_after(seen);
    calls.iter().any(|call| breaks(call, &GRANTED))
}

fn never_called(check_harness: &CheckHarness) -> String {
    let endpoint = &check_harness.options.endpoint.base_url;
    let url = &check_harness.callback_url;
    if is_here(endpoint) || check_harness.options.callback_url.is_some() {
        format!(
            "the runner never called {url}; give a --text that makes it call, if it has such calls"
        )
    } else {
        format!(
            "the runner never called {url}; on another machine it cannot: give --callback-listen and --callback-url"
        )
    }
}

fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn breaks(call: &RecordedCall, check: &ContractCheck) -> bool {
    let broken = match call.outcome {
        CallOutcome::Open | CallOutcome::Answered(_) => return false,
        CallOutcome::Unauthenticated => &TOKEN,
        CallOutcome::AfterEnd => &AFTER_END,
        CallOutcome::NoRoute => &ROUTES,
        CallOutcome::Invalid(_) => &BODIES,
        CallOutcome::NotGranted(_) => &GRANTED,
    };
    broken == check
}

fn in_words(call: &RecordedCall) -> String {
    let RecordedCall { method, path, .. } = call;
    match &call.outcome {
        CallOutcome::Invalid(why) | CallOutcome::NotGranted(why) => {
            format!("{method} {path}: {why}")
        }
        CallOutcome::Unauthenticated => format!("{method} {path} without the token of a run"),
        _ => format!("{method} {path}"),
    }
}
