//! Metrics. All names and labels are defined here, and so is the table that docs and dashboards are tested against.
//!
//! Without [`install`] all calls are no-ops. Label values are fixed names, route templates, configured model
//! ids, or endpoint names, at most [`ENDPOINTS`] of them. They are never ids of runs or persons, nor text of
//! clients or runners. Metrics of each event batch have static handles; others are looked up per call.

mod calls;
mod labels;
mod table;

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use crate::spans::Exported;

pub use calls::{ModelCallCounter, ToolCallTimer, model_called};
pub use labels::{BreakerState, BudgetWaitEnd, NotificationOutcome, PanickedTask, RecoveryReason};
pub use table::{METRICS, Metric, MetricKind};

/// Maximum number of endpoint label values; further ones are `other`.
pub const ENDPOINTS: usize = 50;

const OPEN_STREAMS: &str = "runnel_open_streams";
const EVENTS_APPENDED: &str = "runnel_events_appended_total";
const EVENT_BYTES_APPENDED: &str = "runnel_event_bytes_appended_total";
const RELAY_SECONDS: &str = "runnel_relay_seconds";
const INGEST_SECONDS: &str = "runnel_ingest_seconds";
const RUNS_STARTED: &str = "runnel_runs_started_total";
const RUNS_ENDED: &str = "runnel_runs_ended_total";
const RUN_SECONDS: &str = "runnel_run_seconds";
const EVENTS_INGESTED: &str = "runnel_events_ingested_total";
const RESULTS_REJECTED: &str = "runnel_results_rejected_total";
const INPUTS_TOLERATED: &str = "runnel_inputs_tolerated_total";
const DISPATCH_ATTEMPTS: &str = "runnel_dispatch_attempts_total";
const DOORBELL_RINGS: &str = "runnel_doorbell_rings_total";
const SWEPT_RUNS: &str = "runnel_swept_runs_total";
const LEASES_LOST: &str = "runnel_leases_lost_total";
const DISCOVERIES: &str = "runnel_discoveries_total";
const BREAKER_STATE: &str = "runnel_breaker_state";
const HOST_CALLS: &str = "runnel_host_calls_total";
const BUDGET_WAITS: &str = "runnel_budget_waits_total";
const CHANGES_EXPORTED: &str = "runnel_changes_exported_total";
const SOURCE_REQUESTS: &str = "runnel_source_requests_total";
const WEBHOOK_TRIES: &str = "runnel_webhook_tries_total";
const HOOK_CALLS: &str = "runnel_hook_calls_total";
const SCHEDULE_TRIES: &str = "runnel_schedule_tries_total";
const SCHEDULE_LATE: &str = "runnel_schedule_late_occurrences";
const WEBHOOK_PENDING: &str = "runnel_webhook_pending_deliveries";
const MODEL_CALLS: &str = "runnel_model_calls_total";
const MODEL_TOKENS: &str = "runnel_model_tokens_total";
const MODEL_TOKEN_PARTS: &str = "runnel_model_token_parts_total";
const MODEL_COST: &str = "runnel_model_cost_total";
const TOOL_CALLS: &str = "runnel_tool_calls_total";
const TOOL_CALL_SECONDS: &str = "runnel_tool_call_seconds";
const SPANS: &str = "runnel_spans_total";
const LOG_RECORDS: &str = "runnel_log_records_total";
const HTTP_REQUESTS: &str = "runnel_http_requests_total";
const HTTP_REQUEST_SECONDS: &str = "runnel_http_request_seconds";
const LIVE_RUNS: &str = "runnel_live_runs";
const RUNS: &str = "runnel_runs";
const READY: &str = "runnel_ready";
const PAUSES: &str = "runnel_pauses";
const QUEUED_WRITES: &str = "runnel_writer_queue_items";
const COMMIT_SECONDS: &str = "runnel_commit_seconds";
const COMMIT_ITEMS: &str = "runnel_commit_items";
const COMMITS_FAILED: &str = "runnel_commits_failed_total";
const PANICS: &str = "runnel_panics_total";
const BUILD_INFO: &str = "runnel_build_info";

/// From 0.5 ms to 30 s.
const LATENCIES: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];
const RUN_TIMES: [f64; 11] = [
    0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0,
];
/// The writer commits at most 1,024 items at once.
const BATCHES: [f64; 9] = [1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0];

/// Static handles for metrics of each event batch.
struct StaticHandles {
    open_streams: Gauge,
    events_appended: Counter,
    event_bytes_appended: Counter,
    relay_seconds: Histogram,
    ingest_seconds: Histogram,
    commit_seconds: Histogram,
    commit_items: Histogram,
    commits_failed: Counter,
    rings: [(NotificationOutcome, Counter); 4],
}

static HANDLES: LazyLock<StaticHandles> = LazyLock::new(|| StaticHandles {
    open_streams: gauge!(OPEN_STREAMS),
    events_appended: counter!(EVENTS_APPENDED),
    event_bytes_appended: counter!(EVENT_BYTES_APPENDED),
    relay_seconds: histogram!(RELAY_SECONDS),
    ingest_seconds: histogram!(INGEST_SECONDS),
    commit_seconds: histogram!(COMMIT_SECONDS),
    commit_items: histogram!(COMMIT_ITEMS),
    commits_failed: counter!(COMMITS_FAILED),
    rings: [
        NotificationOutcome::Sent,
        NotificationOutcome::Lost,
        NotificationOutcome::Inbound,
        NotificationOutcome::Missed,
    ]
    .map(|way| (way, counter!(DOORBELL_RINGS, "way" => way.as_str()))),
});

/// Installs the recorder. Call it once, before any metric.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &LATENCIES)?
        .set_buckets_for_metric(Matcher::Full(RUN_SECONDS.to_owned()), &RUN_TIMES)?
        .set_buckets_for_metric(Matcher::Full(COMMIT_ITEMS.to_owned()), &BATCHES)?
        .install_recorder()?;
    for metric in METRICS {
        metric.describe();
    }
    // Created after the recorder: an earlier handle would count nowhere.
    LazyLock::force(&HANDLES);
    // Exported as 0 from the start, since an increase needs an initial value.
    counter!(RUNS_STARTED).absolute(0);
    counter!(LEASES_LOST).absolute(0);
    for task in [
        PanickedTask::Run,
        PanickedTask::Handler,
        PanickedTask::Connection,
        PanickedTask::Writer,
        PanickedTask::Upkeep,
    ] {
        counter!(PANICS, "task" => task.as_str()).absolute(0);
    }
    for why in [
        RecoveryReason::Orphaned,
        RecoveryReason::Continued,
        RecoveryReason::Dispatched,
        RecoveryReason::Overdue,
    ] {
        counter!(SWEPT_RUNS, "why" => why.as_str()).absolute(0);
    }
    for outcome in Exported::ALL {
        counter!(SPANS, "outcome" => outcome.as_str()).absolute(0);
        counter!(LOG_RECORDS, "outcome" => outcome.as_str()).absolute(0);
    }
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

/// An open client stream, counted until it is dropped.
#[derive(Debug)]
pub struct OpenStream(());

impl OpenStream {
    pub fn enter() -> Self {
        HANDLES.open_streams.increment(1.0);
        Self(())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        HANDLES.open_streams.decrement(1.0);
    }
}

/// Committed run events, and their bytes in the ledger.
pub fn appended(events: u64, bytes: usize) {
    HANDLES.events_appended.increment(events);
    HANDLES.event_bytes_appended.increment(bytes as u64);
}

/// Time from reading the oldest byte of a batch until it is visible to clients.
pub fn relayed(after: Duration) {
    HANDLES.relay_seconds.record(after);
}

/// A committed transaction of the writer, from begin to commit.
#[expect(clippy::cast_precision_loss, reason = "a batch is small")]
pub fn committed(items: usize, after: Duration) {
    HANDLES.commit_seconds.record(after);
    HANDLES.commit_items.record(items as f64);
}

/// A transaction of the writer that did not commit.
pub fn commit_failed() {
    HANDLES.commits_failed.increment(1);
}

/// Time to answer an event. `result`: `accepted`, `no_agent`, `duplicate`, or the reason of the refusal.
pub fn ingested(result: &'static str, after: Duration) {
    HANDLES.ingest_seconds.record(after);
    counter!(EVENTS_INGESTED, "result" => result).increment(1);
}

/// A notification on the bus.
pub fn notified(way: NotificationOutcome) {
    if let Some((_, counter)) = HANDLES.rings.iter().find(|(one, _)| *one == way) {
        counter.increment(1);
    }
}

/// A first dispatch of a run.
pub fn run_started() {
    counter!(RUNS_STARTED).increment(1);
}

/// The end of a run. `code`: `ok`, `runner.failed` for a failure reported by the runner, or a gateway code.
pub fn run_ended(status: &'static str, code: &'static str, after_ms: i64) {
    counter!(RUNS_ENDED, "status" => status, "code" => code).increment(1);
    let after = Duration::from_millis(u64::try_from(after_ms).unwrap_or(0));
    histogram!(RUN_SECONDS).record(after);
}

/// A rejected runner result.
pub fn result_rejected(reason: &'static str) {
    counter!(RESULTS_REJECTED, "reason" => reason).increment(1);
}

/// Accepted input that deviates from its protocol: see [`crate::tolerance`].
pub(super) fn input_tolerated(peer: &'static str, kind: &'static str) {
    counter!(INPUTS_TOLERATED, "peer" => peer, "kind" => kind).increment(1);
}

/// A dispatch attempt. `outcome`: `started` or the error code.
pub fn dispatch_attempted(outcome: &'static str) {
    counter!(DISPATCH_ATTEMPTS, "outcome" => outcome).increment(1);
}

/// A run recovered by the sweep.
pub fn swept(why: RecoveryReason) {
    counter!(SWEPT_RUNS, "why" => why.as_str()).increment(1);
}

/// Results of span export.
pub fn spans_exported(outcome: Exported, count: u64) {
    counter!(SPANS, "outcome" => outcome.as_str()).increment(count);
}

/// Results of the export of log records.
pub fn log_records_exported(outcome: Exported, count: u64) {
    counter!(LOG_RECORDS, "outcome" => outcome.as_str()).increment(count);
}

/// A lease that another replica took over.
pub fn lease_lost() {
    counter!(LEASES_LOST).increment(1);
}

/// A call that waited for raises of budgets.
pub fn budget_waited(end: BudgetWaitEnd) {
    counter!(BUDGET_WAITS, "outcome" => end.as_str()).increment(1);
}

/// Administrative changes that were sent to the receiver of `audit.export`. `outcome`: `exported` or `failed`.
pub fn changes_exported(outcome: &'static str, count: usize) {
    counter!(CHANGES_EXPORTED, "outcome" => outcome).increment(count as u64);
}

/// A request to a source of events.
pub fn source_received(result: &'static str) {
    counter!(SOURCE_REQUESTS, "result" => result).increment(1);
}

/// A try to deliver a message to a webhook.
pub fn webhook_tried(outcome: &'static str) {
    counter!(WEBHOOK_TRIES, "outcome" => outcome).increment(1);
}

/// A call of a hook. `outcome`: `allowed`, `denied`, `replaced`, `failed_open` or `failed_closed`.
pub fn hook_called(moment: &'static str, outcome: &'static str) {
    counter!(HOOK_CALLS, "moment" => moment, "outcome" => outcome).increment(1);
}

/// A try to store the event of an occurrence.
pub fn schedule_triggered(outcome: &'static str) {
    counter!(SCHEDULE_TRIES, "outcome" => outcome).increment(1);
}

/// Occurrences of all schedules that are due and wait.
pub fn set_late_occurrences(count: u32) {
    gauge!(SCHEDULE_LATE).set(f64::from(count));
}

/// Pending deliveries of all webhooks.
pub fn set_pending_deliveries(count: u32) {
    gauge!(WEBHOOK_PENDING).set(f64::from(count));
}

/// A discovery of an endpoint. `outcome`: `ok`, `unreachable` or `unhealthy`.
pub fn discovered(endpoint: &str, outcome: &'static str) {
    let endpoint = endpoint_label(endpoint);
    counter!(DISCOVERIES, "endpoint" => endpoint, "outcome" => outcome).increment(1);
}

/// The state of an endpoint's circuit breaker.
pub fn set_breaker(endpoint: &str, state: BreakerState) {
    let value = match state {
        BreakerState::Closed => 0.0,
        BreakerState::HalfOpen => 1.0,
        BreakerState::Open => 2.0,
    };
    gauge!(BREAKER_STATE, "endpoint" => endpoint_label(endpoint)).set(value);
}

/// A caught panic, limited to its task.
pub fn panicked(task: PanickedTask) {
    counter!(PANICS, "task" => task.as_str()).increment(1);
}

/// A response, or the start of its stream. `route`: the template, `None` if unknown; `method`: `None` if the
/// route does not support it; `status`: the code.
pub fn answered(route: Option<&str>, method: Option<&str>, status: u16, after: Duration) {
    let face = match route {
        Some(route) if route.starts_with("/host/v1/") => "host",
        Some(route) if route.starts_with("/v1/") => "api",
        _ => "other",
    };
    if let (Some(route), "host") = (route, face) {
        let outcome = outcome_of(status);
        counter!(HOST_CALLS, "route" => route.to_owned(), "outcome" => outcome).increment(1);
    }
    let labels = [
        ("method", method.unwrap_or("other").to_owned()),
        ("route", route.unwrap_or("none").to_owned()),
        // Classes, not codes: each label value is a series of its own.
        ("status", format!("{}xx", status / 100)),
    ];
    counter!(HTTP_REQUESTS, &labels).increment(1);
    histogram!(HTTP_REQUEST_SECONDS, "face" => face).record(after);
}

fn outcome_of(status: u16) -> &'static str {
    match status {
        100..400 => "allowed",
        401 | 403 => "denied",
        404 => "not_found",
        429 => "limited",
        400..500 => "refused",
        _ => "failed",
    }
}

/// Gauges that are sampled when metrics are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessGauges {
    /// Number of runs that this process drives.
    pub live_runs: usize,
    /// Number of writes waiting for a commit.
    pub queued_writes: usize,
}

impl ProcessGauges {
    pub fn show(self) {
        #[expect(clippy::cast_precision_loss, reason = "bounded far below 2^52")]
        let number = |count: usize| count as f64;
        gauge!(LIVE_RUNS).set(number(self.live_runs));
        gauge!(QUEUED_WRITES).set(number(self.queued_writes));
    }
}

/// New runs are accepted, as in `/readyz`.
pub fn set_ready() {
    gauge!(READY).set(1.0);
}

/// No new runs are accepted.
pub fn set_not_ready() {
    gauge!(READY).set(0.0);
}

/// Number of unfinished runs in the database, by status. Equal on all replicas.
pub fn set_runs(status: &'static str, count: u32) {
    gauge!(RUNS, "status" => status).set(f64::from(count));
}

/// Number of pauses by operators, by mode. Equal on all replicas.
pub fn set_pauses(mode: &'static str, count: u32) {
    gauge!(PAUSES, "mode" => mode).set(f64::from(count));
}

/// The endpoint's name, or `other` beyond the limit.
fn endpoint_label(endpoint: &str) -> String {
    static LABELS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    endpoint_label_among(
        &mut LABELS.lock().unwrap_or_else(PoisonError::into_inner),
        endpoint,
    )
}

fn endpoint_label_among(registered: &mut BTreeSet<String>, endpoint: &str) -> String {
    if !registered.contains(endpoint) {
        // Administrators choose the names, and each label value is a series of its own.
        if registered.len() >= ENDPOINTS {
            return "other".to_owned();
        }
        registered.insert(endpoint.to_owned());
    }
    endpoint.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_beyond_the_limit_share_a_label() {
        let mut registered = BTreeSet::new();
        let names: BTreeSet<_> = (0..ENDPOINTS * 3)
            .map(|n| endpoint_label_among(&mut registered, &format!("endpoint {n}")))
            .collect();
        assert_eq!(names.len(), ENDPOINTS + 1);
        assert!(names.contains("other"));
        assert_eq!(
            endpoint_label_among(&mut registered, "endpoint 0"),
            "endpoint 0"
        );
    }

    #[test]
    fn docs_table_lists_each_metric_once() {
        let page = include_str!("../../../docs/metrics.md");
        for Metric {
            name,
            kind,
            labels,
            help,
        } in METRICS
        {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let row = format!(
                "| `{name}` | {} | {} | {help} |",
                kind.as_str(),
                labels.join(", ")
            );
            assert_eq!(
                page.matches(&row).count(),
                1,
                "docs/metrics.md lacks\n{row}"
            );
        }
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, METRICS.len(), "the page names a metric that is none");
    }
}
