//! The conformance suite for runner authors: tests each rule of the runner contract against a live endpoint.
//!
//! It sends requests through the gateway's client (`runner_client`) and validates with the gateway's rules
//! (`domain::manifest`, `domain::normalize`), so its results match the gateway.

pub mod junit;
pub mod report;

mod callbacks;
mod cancel;
mod check_harness;
mod concurrency;
mod deadline;
mod discovery;
mod mock_host;
mod options;
mod recording;
mod requests;
mod resume;
mod run_text;
mod signature;
mod streams;

use std::time::Duration;

use domain::manifest::AcceptedManifest;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use check_harness::CheckHarness;
use report::{ConformReport, ContractCheck, FindingCollector};
use web::http_server;

pub use options::{ConformError, ConformOptions};

/// All checks, in report order.
fn all_checks() -> [&'static [&'static ContractCheck]; 9] {
    [
        &discovery::ALL,
        &signature::ALL,
        &streams::ALL,
        &requests::ALL,
        &cancel::ALL,
        &resume::ALL,
        &deadline::ALL,
        &concurrency::ALL,
        &callbacks::ALL,
    ]
}

/// Tests an endpoint. Faults of the endpoint are findings, not errors.
pub async fn conform(options: ConformOptions) -> Result<ConformReport, ConformError> {
    let listen = options.callback_listen;
    let listener =
        http_server::bind(listen).map_err(|error| ConformError::Listen(listen, error))?;
    // Port 0 lets the system choose, so the callback URL needs the bound address.
    let address = listener
        .local_addr()
        .map_err(|error| ConformError::Listen(listen, error))?;
    let check_harness = CheckHarness::new(options, address)?;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let server = http_server::ServerOptions {
        drain: Duration::from_millis(200),
        ..http_server::ServerOptions::default()
    };
    tasks.spawn(http_server::serve(
        listener,
        check_harness.host.router(),
        server,
        stop.clone(),
    ));
    // The server must run before the first run: a runner calls back at once.
    let report = test(&check_harness).await;
    stop.cancel();
    // Waits for open callbacks, so that none is reset while the runner reads it.
    tasks.close();
    tasks.wait().await;
    report
}

async fn test(check_harness: &CheckHarness) -> Result<ConformReport, ConformError> {
    let mut book = FindingCollector::new(&check_harness.redaction);
    let found = discovery::check(check_harness, &mut book).await?;
    let runners = chosen(check_harness, found)?;
    // Fails before any run is posted: all runs would fail for the same reason.
    for runner in &runners {
        check_harness.check_config(runner)?;
    }
    let Some(first) = runners.first() else {
        let left = all_checks().into_iter().flatten();
        let left = left.filter(|check| !book.has(check)).count();
        return Ok(ConformReport {
            not_run: left,
            ..report(check_harness, book)
        });
    };
    signature::check(check_harness, first, &mut book).await;
    for runner in &runners {
        book.set_runner(&runner.manifest.id);
        test_runner(check_harness, runner, &mut book).await;
    }
    Ok(report(check_harness, book))
}

fn report(check_harness: &CheckHarness, book: FindingCollector<'_>) -> ConformReport {
    ConformReport::new(
        &check_harness.options.endpoint,
        &check_harness.callback_url,
        book,
    )
}

async fn test_runner(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let seen = check_harness.host.call_count();
    let completed = check_harness.completed_runs();
    let plain = streams::check(check_harness, runner, book).await;
    // Each further check needs a runner that completes a plain run, and would repeat its faults.
    if plain.is_valid() {
        requests::check(check_harness, runner, book).await;
        cancel::check(check_harness, runner, book).await;
        resume::check(check_harness, runner, book).await;
        deadline::check(check_harness, runner, book).await;
        concurrency::check(check_harness, runner, book).await;
        let has_completed = check_harness.completed_runs() > completed;
        // A runner may need a call that the check does not grant.
        if !has_completed && !callbacks::has_refused_call(check_harness, seen) {
            streams::fail_completion(book);
        }
    } else {
        let rest: [&[&ContractCheck]; 5] = [
            &requests::ALL,
            &cancel::ALL,
            &resume::ALL,
            &deadline::ALL,
            &concurrency::ALL,
        ];
        book.skip_open(
            &rest,
            "a plain run is not sound yet: mend the checks above first",
        );
    }
    callbacks::check(check_harness, seen, book);
}

fn chosen(
    check_harness: &CheckHarness,
    found: Vec<AcceptedManifest>,
) -> Result<Vec<AcceptedManifest>, ConformError> {
    let Some(wanted) = &check_harness.options.runner else {
        return Ok(found);
    };
    let listed: Vec<_> = found
        .iter()
        .map(|runner| runner.manifest.id.to_string())
        .collect();
    let is_wanted = |runner: &AcceptedManifest| runner.manifest.id == *wanted;
    let chosen: Vec<_> = found.into_iter().filter(is_wanted).collect();
    // Without a list, the discovery has reported the cause already.
    if chosen.is_empty() && !listed.is_empty() {
        return Err(ConformError::NoSuchRunner {
            wanted: wanted.clone(),
            listed: listed.join(", "),
        });
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn checks_have_unique_ids_and_advice() {
        let mut ids = HashSet::new();
        for check in all_checks().into_iter().flatten() {
            assert!(ids.insert(check.id), "{} appears twice", check.id);
            assert!(check.id.contains('.'), "{}", check.id);
            assert!(!check.expected.is_empty() && !check.advice.is_empty());
        }
    }
}
